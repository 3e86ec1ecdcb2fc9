// sidestep cufile stats: what running programs do through the library that stands in for cuFile, and which way it goes.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/try.hpp"
#include "bench/text.hpp"
#include "report.hpp"
#include "shims/cufile/calls.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

using cufile::CallKind;
using cufile::CountsPage;
using cufile::Totals;
using Json = nlohmann::ordered_json;

struct CufileCommand {
    std::vector<int> processes;  // empty: all of this user
};

// In which the library runs.
struct CufileProcess {
    int id = 0;
    std::string command;
    Totals totals;
};

struct ClosedFolder {
    void operator()(DIR* folder) const { ::closedir(folder); }
};
struct ClosedFile {
    ~ClosedFile() {
        if (number >= 0) ::close(number);
    }
    const int number;
};

// The entries of a folder of /proc that are numbers; nothing where it cannot be listed.
std::optional<std::vector<int>> numbers_in(const std::string& path) {
    const std::unique_ptr<DIR, ClosedFolder> folder(::opendir(path.c_str()));
    if (!folder) return std::nullopt;
    std::vector<int> numbers;
    while (const dirent* entry = ::readdir(folder.get())) {
        const char* const end = entry->d_name + std::strlen(entry->d_name);
        int number = 0;
        if (const auto read = std::from_chars(entry->d_name, end, number);
            read.ec == std::errc{} && read.ptr == end)
            numbers.push_back(number);
    }
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

// As the process itself knows its number.
std::uint64_t own_number(int process) {
    std::ifstream status(fmt::format("/proc/{}/status", process));
    for (std::string line; std::getline(status, line);) {
        if (!line.starts_with("NSpid:")) continue;
        std::istringstream words(line.substr(6));
        std::uint64_t last = 0;
        while (words >> last) {
        }
        return last;
    }
    return static_cast<std::uint64_t>(process);
}

// "python3 train.py", what cannot be printed as '?'.
std::string command_of(int process) {
    std::ifstream file(fmt::format("/proc/{}/cmdline", process), std::ios::binary);
    std::string line(80, '\0');
    file.read(line.data(), static_cast<std::streamsize>(line.size()));
    line.resize(static_cast<std::size_t>(file.gcount()));
    while (!line.empty() && line.back() == '\0') line.pop_back();
    for (char& letter : line)
        if (letter == '\0')
            letter = ' ';
        else if (static_cast<unsigned char>(letter) < 0x20 || static_cast<unsigned char>(letter) > 0x7e)
            letter = '?';
    return line;
}

// What a descriptor of the process leads to, if it is the library's memory. Nobody can make that shorter, and only its
// user can open it.
std::optional<Totals> totals_behind(int process, int descriptor) {
    const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);
    char text[64] = {};
    if (::readlink(path.c_str(), text, sizeof text - 1) < 0 ||
        text != fmt::format("/memfd:{} (deleted)", CountsPage::name))
        return std::nullopt;
    const ClosedFile file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.number < 0) return std::nullopt;
    const int seals = ::fcntl(file.number, F_GET_SEALS);
    struct stat status {};
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(file.number, &status) != 0 ||
        status.st_size != static_cast<off_t>(sizeof(CountsPage)))
        return std::nullopt;
    std::string bytes(sizeof(CountsPage), '\0');
    if (::pread(file.number, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
        return std::nullopt;
    const auto page = std::make_unique<CountsPage>();
    std::memcpy(static_cast<void*>(page.get()), bytes.data(), bytes.size());
    if (page->magic.load() != CountsPage::right_magic || page->process.load() != own_number(process))
        return std::nullopt;
    return page->sums();
}

// Nothing where the library does not run in it.
Result<std::optional<CufileProcess>> look_at(int process) {
    const std::string path = fmt::format("/proc/{}/fd", process);
    const auto descriptors = numbers_in(path);
    if (!descriptors) {
        const int number = errno;
        return Error{number == ENOENT ? ErrorCode::not_found : ErrorCode::permission_denied,
                     number == ENOENT ? fmt::format("there is no process {}", process)
                                      : fmt::format("process {} cannot be looked at: {}", process,
                                                    std::generic_category().message(number)),
                     path, number == ENOENT ? "" : "it belongs to another user: ask as that one"};
    }
    for (const int descriptor : *descriptors)
        if (const auto totals = totals_behind(process, descriptor))
            return std::optional(CufileProcess{process, command_of(process), *totals});
    return std::optional<CufileProcess>();
}

Result<std::vector<CufileProcess>> find(const CufileCommand& command) {
    std::vector<CufileProcess> found;
    for (const int id : command.processes) {
        const auto process = look_at(id);
        if (!process) return process.error();
        if (!*process)
            return Error{ErrorCode::not_found,
                         fmt::format("process {} has called nothing of Sidestep's cuFile", id),
                         fmt::format("/proc/{}/fd", id), "start it with sidestep run -- PROGRAM"};
        found.push_back(**process);
    }
    if (!command.processes.empty()) return found;
    const auto all = numbers_in("/proc");
    if (!all) return Error{ErrorCode::io_error, "processes cannot be listed", "/proc", "mount /proc"};
    for (const int id : *all)
        if (const auto process = look_at(id); process && *process) found.push_back(**process);
    return found;
}

constexpr std::pair<CallKind, const char*> kinds[] = {
    {CallKind::read, "read"},
    {CallKind::write, "write"},
    {CallKind::readv, "readv"},
    {CallKind::writev, "writev"},
    {CallKind::batch_read, "batch read"},
    {CallKind::batch_write, "batch write"},
    {CallKind::stream_read, "stream read"},
    {CallKind::stream_write, "stream write"},
};

std::string text_of(const CufileProcess& process) {
    std::string text = fmt::format("process {}, {}\n", process.id, process.command);
    std::vector<std::vector<std::string>> rows{
        {"operation", "done", "failed", "bytes", "direct", "O_DIRECT", "page cache", "each took"}};
    const auto size = [](Bytes bytes) { return bytes == 0 ? "-" : format_bytes(bytes); };
    for (const auto& [kind, name] : kinds) {
        const Totals::OfKind& of = process.totals.of(kind);
        const std::uint64_t calls = of.ok + of.failed;
        if (calls == 0) continue;
        rows.push_back(
            {name, std::to_string(of.ok), std::to_string(of.failed), size(of.bytes),
             size(of.storage.gpu_direct), size(of.storage.o_direct), size(of.storage.page_cache),
             format_seconds(static_cast<double>(of.nanoseconds) / 1e9 / static_cast<double>(calls))});
    }
    return text + (rows.size() == 1 ? "  nothing read or written yet\n" : bench::align(rows));
}

Json json_of(const CufileProcess& process) {
    Json operations = Json::object();
    for (const auto& [kind, name] : kinds) {
        const Totals::OfKind& of = process.totals.of(kind);
        std::string key = name;
        std::replace(key.begin(), key.end(), ' ', '_');
        operations[key] = {{"done", of.ok},
                           {"failed", of.failed},
                           {"bytes", of.bytes},
                           {"seconds", static_cast<double>(of.nanoseconds) / 1e9},
                           {"gpu_direct_bytes", of.storage.gpu_direct},
                           {"o_direct_bytes", of.storage.o_direct},
                           {"page_cache_bytes", of.storage.page_cache}};
    }
    return {{"process", process.id}, {"command", process.command}, {"operations", operations}};
}

Result<void> run_stats(const CufileCommand& command, const Globals& globals) {
    SIDESTEP_TRY(const auto found, find(command));
    if (globals.json) {
        Json list = Json::array();
        for (const CufileProcess& process : found) list.push_back(json_of(process));
        return print(document({{"version", 1}, {"processes", list}}));
    }
    std::string text;
    for (const CufileProcess& process : found) text += text_of(process);
    return print(text.empty() ? "no process of this user runs over Sidestep's cuFile\n" : text);
}

}  // namespace

Action define_cufile(CLI::App& app, const Globals& globals) {
    auto command = std::make_shared<CufileCommand>();
    app.require_subcommand(0, 1);  // there is one, which is meant where none is given
    CLI::App* stats =
        app.add_subcommand("stats", "calls and bytes of running programs, by the way that they went");
    stats->fallthrough();
    stats
        ->add_option("PROCESS", command->processes,
                     "only these, by their numbers (default: all of this user)")
        ->type_name("");
    return done_or_fails([command, &globals] { return run_stats(*command, globals); });
}

}  // namespace sidestep::cli
