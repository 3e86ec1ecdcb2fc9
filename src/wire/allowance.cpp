#include "wire/allowance.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/files.hpp"
#include "driver/system_error.hpp"

namespace sidestep::wire {
namespace {

constexpr std::string_view forms =
    "an entry is gpu:N, gpu:*, host, file:PATH, shared:NAME or shared:*; =SIZE bounds memory, =rw lets a "
    "path be written";

Error not_an_entry(std::string_view entry, std::string hint = std::string(forms)) {
    return Error{ErrorCode::invalid_argument, fmt::format("'{}' cannot be allowed", entry), "--allow",
                 std::move(hint)};
}

Error there_twice(std::string_view entry) {
    return Error{ErrorCode::invalid_argument, fmt::format("'{}' allows what another entry does", entry),
                 "--allow", "name it once"};
}

bool is_control(char byte) {
    return static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f;
}

// "%2C" and the like, for the bytes that an entry cannot hold and those that would break a line.
std::string encoded(const std::string& path) {
    std::string text;
    for (const char byte : path)
        if (byte == ',' || byte == '%' || byte == '=' || is_control(byte))
            text += fmt::format("%{:02X}", static_cast<unsigned char>(byte));
        else
            text += byte;
    return text;
}

int value_of_digit(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return -1;
}

std::optional<std::string> decoded(std::string_view text) {
    std::string path;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            path += text[i];
            continue;
        }
        const int high = i + 2 < text.size() ? value_of_digit(text[i + 1]) : -1;
        const int low = i + 2 < text.size() ? value_of_digit(text[i + 2]) : -1;
        if (high < 0 || low < 0) return std::nullopt;
        path += static_cast<char>(high * 16 + low);
        i += 2;
    }
    return path;
}

// A path as an error shows it: what others sent is to break no line and fill no log.
std::string shown(const std::string& path) {
    constexpr std::size_t longest = 256;
    std::string text;
    for (const char byte : path.substr(0, longest)) text += is_control(byte) ? '?' : byte;
    return path.size() > longest ? text + "..." : text;
}

// The number of bytes so that parse_bytes() reads the very same.
std::string exact_bytes(Bytes bytes) {
    const char* unit = "";
    for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
        if (bytes % 1024 != 0) break;
        bytes /= 1024;
        unit = next;
    }
    return fmt::format("{}{}", bytes, unit);
}

// The canonical path; errno says why there is none.
std::optional<std::string> real_path(const std::string& path) {
    const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
    if (!real) return std::nullopt;
    return std::string(real.get());
}

bool is_folder(const std::string& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::string joined(const std::string& folder, const std::string& name) {
    return folder == "/" ? folder + name : folder + "/" + name;
}

// Whether `path` is `top` or below it, by their letters.
bool is_within(const std::string& path, const std::string& top) {
    if (top == "/") return path.starts_with('/');
    return path.starts_with(top) && (path.size() == top.size() || path[top.size()] == '/');
}

// "//" and "/./" taken out, and what of them stands at the end.
std::string without_empty_steps(std::string_view path) {
    std::string plain;
    while (!path.empty()) {
        const std::size_t slash = std::min(path.find('/'), path.size());
        const std::string_view step = path.substr(0, slash);
        path.remove_prefix(std::min(slash + 1, path.size()));
        if (!step.empty() && step != ".") plain.append("/").append(step);
    }
    return plain.empty() ? "/" : plain;
}

// Looks at the letters alone, so that the answer says nothing about this machine.
Result<void> check_form(const std::string& path) {
    const char* why = nullptr;
    std::size_t step = 0, longest_step = 0;
    for (const char byte : path) {
        step = byte == '/' ? 0 : step + 1;
        longest_step = std::max(longest_step, step);
    }
    const std::string last = driver::split_path(path).name;
    if (last.empty() || last == "." || last == "..") why = "names a folder, not a file";
    if (!path.starts_with('/')) why = "is not an absolute path";
    if (path.size() >= PATH_MAX || longest_step > NAME_MAX) why = "is too long for a path";
    if (path.find('\0') != std::string::npos) why = "holds a zero byte";
    if (why == nullptr) return {};
    return Error{ErrorCode::invalid_argument,
                 fmt::format("'{}' {}", shown(path), why),
                 {},
                 "name a file of another node by its absolute path, such as /data/model.safetensors"};
}

Error not_allowed(const std::string& path, Permission permission) {
    return Error{ErrorCode::permission_denied,
                 fmt::format("'{}' is not among what this node lets others {}", shown(path),
                             permission == Permission::write ? "write" : "read"),
                 {},
                 "whoever runs the node has to allow it"};
}

struct End {
    std::string path;  // canonical
    bool there = false;
    bool folder_there = false;  // what it would be in
};

// `name` in `folder`, which is canonical, with `rest` below it: not there by what was seen a moment ago.
std::optional<End> end_below(const std::string& folder, const std::string& name, const std::string& rest) {
    End end{joined(folder, name), false, false};
    struct stat status {};
    const bool there = ::lstat(end.path.c_str(), &status) == 0;
    if (!there && errno != ENOENT && errno != ENOTDIR) return std::nullopt;
    // A link that leads nowhere might lead anywhere once it is written through.
    if (there && S_ISLNK(status.st_mode)) return std::nullopt;
    end.there = there && rest.empty();  // somebody has just made it
    end.folder_there = rest.empty() && is_folder(folder);
    end.path += rest;
    if (end.path.size() >= PATH_MAX) return std::nullopt;
    return end;
}

// Where a path without ".." leads; also one whose last names are not there yet. Nothing for what cannot be followed.
std::optional<End> end_of(const std::string& path) {
    std::string above = path;
    std::string rest;
    std::string name;
    for (;;) {
        const auto real = real_path(above);
        const int number = errno;
        if (real && name.empty()) return End{*real, true, true};
        if (real) return end_below(*real, name, rest);
        if (number != ENOENT && number != ENOTDIR) return std::nullopt;
        if (!name.empty()) rest = "/" + name + rest;
        auto split = driver::split_path(above);
        if (split.name.empty()) return std::nullopt;
        name = std::move(split.name);
        above = std::move(split.folder);
    }
}

Error nothing_there(const std::string& path, std::string_view what) {
    return Error{ErrorCode::not_found,
                 fmt::format("{} '{}' is not there", what, shown(path)),
                 {},
                 "the path is one of the other node's machine"};
}

// Of what is there and allowed.
Result<void> check_type(const std::string& canonical, const std::string& path, Permission permission) {
    struct stat status {};
    if (::lstat(canonical.c_str(), &status) != 0) return nothing_there(path, "the file");
    if (S_ISLNK(status.st_mode)) return not_allowed(path, permission);  // it has become one since
    if (S_ISREG(status.st_mode) || S_ISBLK(status.st_mode)) return {};
    return Error{ErrorCode::invalid_argument,
                 fmt::format("'{}' is {}", shown(path),
                             S_ISDIR(status.st_mode) ? "a folder" : "neither a file nor a block device"),
                 {},
                 "only files and block devices are lent to other nodes"};
}

// As Place takes it, and no hidden file in the folder where published memory is found.
bool is_shared_name(const std::string& name) {
    return Place::parse("shared:" + name).ok() && name.front() != '.';
}

}  // namespace

Result<Allowances> Allowances::parse(std::string_view text) {
    Allowances allowances;
    for (std::size_t begin = 0; !text.empty() && begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        SIDESTEP_CHECK(allowances.add(text.substr(begin, end - begin)));
        begin = end + 1;
    }
    return allowances;
}

Result<void> Allowances::add(std::string_view entry) {
    if (entry.starts_with("file:")) return add_path(entry);
    if (entry.starts_with("shared:")) return add_shared(entry);
    return add_memory(entry);
}

Result<void> Allowances::add_memory(std::string_view entry) {
    const std::size_t sign = entry.find('=');
    Memory memory;
    memory.name = std::string(entry.substr(0, sign));
    if (memory.name != "host" && memory.name != "gpu:*") {
        const auto place = Place::parse(memory.name);
        if (!place || !place->is_gpu() || !place->node().empty()) return not_an_entry(entry);
    }
    if (sign != std::string_view::npos) {
        const auto bound = parse_bytes(entry.substr(sign + 1));
        if (!bound || *bound == 0)
            return not_an_entry(entry, "after '=' stands a size above 0, such as gpu:0=8GiB");
        memory.bound = *bound;
    }
    for (const Memory& other : memory_)
        if (other.name == memory.name) return there_twice(entry);
    memory_.push_back(std::move(memory));
    return {};
}

Result<void> Allowances::add_path(std::string_view entry) {
    std::string_view text = entry.substr(std::string_view("file:").size());
    Path path;
    if (const std::size_t sign = text.find('='); sign != std::string_view::npos) {
        if (text.substr(sign) != "=rw")
            return not_an_entry(entry, "after '=' stands rw; a '=' within a path is written %3D, a ',' %2C");
        path.writable = true;
        text = text.substr(0, sign);
    }
    const auto asked = decoded(text);
    if (!asked) return not_an_entry(entry, "a '%' within a path is written %25");
    if (!asked->starts_with('/') || asked->find('\0') != std::string::npos)
        return not_an_entry(entry, "file: is followed by an absolute path");
    const auto real = real_path(*asked);
    if (!real)
        return driver::system_error(errno, fmt::format("'{}' cannot be allowed", entry), "--allow",
                                    "name a folder or file that is there");
    path.path = *real;
    // With ".." in it no path begins so, and the canonical one has to do.
    path.written = without_empty_steps(*asked);
    path.folder = is_folder(*real);
    if (!path.folder && !check_type(*real, *real, Permission::read))
        return not_an_entry(entry, "only folders, files and block devices can be allowed");
    for (const Path& other : paths_)
        if (other.path == path.path && other.written == path.written) return there_twice(entry);
    paths_.push_back(std::move(path));
    return {};
}

Result<void> Allowances::add_shared(std::string_view entry) {
    std::string name(entry.substr(std::string_view("shared:").size()));
    if (name != "*" && !is_shared_name(name))
        return not_an_entry(entry, "shared: is followed by * or a name of letters, digits, '.', '_' and '-'");
    if (std::find(shared_.begin(), shared_.end(), name) != shared_.end()) return there_twice(entry);
    shared_.push_back(std::move(name));
    return {};
}

bool Allowances::begins_as_an_entry(const std::string& path) const {
    return std::any_of(paths_.begin(), paths_.end(), [&](const Path& entry) {
        return is_within(path, entry.path) || is_within(path, entry.written);
    });
}

bool Allowances::allows(const std::string& canonical, Permission permission) const {
    return std::any_of(paths_.begin(), paths_.end(), [&](const Path& entry) {
        if (permission == Permission::write && !entry.writable) return false;
        return entry.folder ? is_within(canonical, entry.path) : canonical == entry.path;
    });
}

// The same path without "..". Each is only taken from a folder that is allowed: "/secret/../data/x" would tell whether
// there is a /secret.
std::optional<std::string> Allowances::without_steps_back(std::string path) const {
    for (;;) {
        const std::size_t at = path.find("/../");
        if (at == std::string::npos) return path;
        const std::string before = at == 0 ? "/" : path.substr(0, at);
        if (!begins_as_an_entry(before)) return std::nullopt;
        const auto real = real_path(before);
        if (!real || !allows(*real, Permission::read) || !is_folder(*real)) return std::nullopt;
        path.replace(0, at + 3, real->substr(0, real->rfind('/')));
    }
}

Result<std::string> Allowances::file(const std::string& path, Permission permission) const {
    SIDESTEP_CHECK(check_form(path));
    const auto straight = without_steps_back(without_empty_steps(path));
    if (!straight || !begins_as_an_entry(*straight)) return not_allowed(path, permission);
    auto end = end_of(*straight);
    if (!end || !allows(end->path, permission)) return not_allowed(path, permission);
    if (end->there) {
        SIDESTEP_CHECK(check_type(end->path, path, permission));
    } else if (permission == Permission::read) {
        return nothing_there(path, "the file");
    } else if (!end->folder_there) {
        return nothing_there(path, "the folder of the file");
    }
    return std::move(end->path);
}

Result<std::string> Allowances::folder(std::string path) const {
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    // "/" has no last name, and is a folder all the same.
    if (path != "/") SIDESTEP_CHECK(check_form(path));
    const auto straight = without_steps_back(without_empty_steps(path));
    if (!straight || !begins_as_an_entry(*straight)) return not_allowed(path, Permission::read);
    auto end = end_of(*straight);
    if (!end || !allows(end->path, Permission::read)) return not_allowed(path, Permission::read);
    if (!end->there) return nothing_there(path, "the folder");
    if (is_folder(end->path)) return std::move(end->path);
    return Error{ErrorCode::invalid_argument, fmt::format("'{}' is no folder", shown(path)), {}, {}};
}

Result<void> Allowances::shared(const std::string& name) const {
    const bool named = std::find_if(shared_.begin(), shared_.end(), [&](const std::string& entry) {
                           return entry == "*" || entry == name;
                       }) != shared_.end();
    if (named && is_shared_name(name)) return {};
    return Error{ErrorCode::permission_denied,
                 fmt::format("shared:{} is not among what this node lets others reach", shown(name)),
                 {},
                 "whoever runs the node has to allow it"};
}

const Allowances::Memory* Allowances::memory_of(const Place& place) const {
    const auto named = [&](const std::string& name) -> const Memory* {
        const auto found = std::find_if(memory_.begin(), memory_.end(),
                                        [&](const Memory& memory) { return memory.name == name; });
        return found == memory_.end() ? nullptr : &*found;
    };
    if (place.is_host()) return named("host");
    if (!place.is_gpu()) return nullptr;
    const Memory* own = named(fmt::format("gpu:{}", place.index()));
    return own != nullptr ? own : named("gpu:*");
}

Result<void> Allowances::memory(const Place& place, Bytes bytes, Bytes held) const {
    const Memory* entry = memory_of(place);
    if (entry == nullptr)
        return Error{ErrorCode::permission_denied,
                     fmt::format("memory of {} is not among what this node lets others have",
                                 shown(place.to_string())),
                     {},
                     "whoever runs the node has to allow it"};
    if (!entry->bound || (held <= *entry->bound && bytes <= *entry->bound - held)) return {};
    return Error{
        ErrorCode::out_of_memory,
        fmt::format("this node lends {} of {} at a time, and {} are out; {} more were asked for",
                    format_bytes(*entry->bound), entry->name, format_bytes(held), format_bytes(bytes)),
        {},
        "give memory back, or have the node allow more"};
}

std::string Allowances::account(const Place& place) const {
    const Memory* entry = memory_of(place);
    return entry == nullptr ? std::string() : entry->name;
}

std::vector<Place> Allowances::gpus() const {
    std::vector<Place> named;
    for (const Memory& memory : memory_)
        if (const auto place = Place::parse(memory.name); place && place->is_gpu()) named.push_back(*place);
    return named;
}

std::vector<std::string> Allowances::lines() const {
    std::vector<std::string> lines;
    for (const Memory& memory : memory_)
        lines.push_back(memory.name + (memory.bound ? "=" + exact_bytes(*memory.bound) : ""));
    for (const Path& path : paths_)
        lines.push_back("file:" + encoded(path.path) + (path.writable ? "=rw" : ""));
    for (const std::string& name : shared_) lines.push_back("shared:" + name);
    return lines;
}

}  // namespace sidestep::wire
