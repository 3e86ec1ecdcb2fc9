#include "driver/machine_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "base/printable.hpp"

namespace sidestep::driver {

namespace {

std::string trimmed(const std::string& text) {
    const auto first = text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::optional<std::string> read_at_most(const std::string& path, std::size_t max) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return std::nullopt;
    std::string text;
    std::array<char, 4096> part{};
    ssize_t got = 0;
    while (text.size() < max) {
        got = ::read(fd, part.data(), std::min(part.size(), max - text.size()));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        text.append(part.data(), static_cast<std::size_t>(got));
    }
    ::close(fd);
    if (got < 0) return std::nullopt;  // some files of /sys open well and fail on read
    return text;
}

// With all links followed; empty where it leads nowhere.
std::string followed(const std::string& path) {
    const std::unique_ptr<char, void (*)(void*)> real(::realpath(path.c_str(), nullptr), std::free);
    return real == nullptr ? std::string() : std::string(real.get());
}

}  // namespace

MachineFiles::MachineFiles(std::string root) : root_(std::move(root)) {
    if (root_.empty()) return;
    real_root_ = followed(root_);
    if (real_root_ == "/") real_root_.clear();
    const std::string list = text(denied_list, std::size_t{1} << 20).value_or("");
    for (std::size_t at = 0; at < list.size();) {
        const std::size_t end = std::min(list.find('\n', at), list.size());
        denied_.insert(list.substr(at, end - at));
        at = end + 1;
    }
}

std::optional<std::string> MachineFiles::line(const std::string& path) const {
    if (accesses_) accesses_->read.insert(path);
    if (denied_.count(path) != 0) return std::nullopt;
    const auto place = place_of(path);
    const auto read = place ? read_at_most(*place, 4096) : std::nullopt;
    if (!read) return std::nullopt;
    std::string first = trimmed(read->substr(0, read->find('\n')));
    base::make_printable(first);
    return first;
}

std::optional<std::string> MachineFiles::text(const std::string& path, std::size_t max) const {
    if (accesses_) accesses_->read.insert(path);
    if (denied_.count(path) != 0) return std::nullopt;
    const auto place = place_of(path);
    return place ? read_at_most(*place, max) : std::nullopt;
}

std::optional<long> MachineFiles::number(const std::string& path) const {
    const auto read = line(path);
    if (!read || read->empty()) return std::nullopt;
    char* end = nullptr;
    const int base = read->rfind("0x", 0) == 0 ? 16 : 10;
    errno = 0;
    const long value = std::strtol(read->c_str(), &end, base);
    if (errno != 0 || *end != '\0') return std::nullopt;
    return value;
}

std::vector<std::string> MachineFiles::names(const std::string& folder) const {
    if (accesses_) accesses_->listed.insert(folder);
    std::vector<std::string> names;
    const auto place = place_of(folder);
    const std::unique_ptr<DIR, int (*)(DIR*)> open(place ? ::opendir(place->c_str()) : nullptr, ::closedir);
    if (open == nullptr) return names;
    while (const dirent* entry = ::readdir(open.get())) {
        const std::string name = entry->d_name;
        if (name != "." && name != "..") names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

bool MachineFiles::exists(const std::string& path) const {
    if (accesses_) accesses_->asked.insert(path);
    const auto place = place_of(path);
    return place && ::access(place->c_str(), F_OK) == 0;
}

FileState MachineFiles::state(const std::string& path) const {
    if (accesses_) accesses_->asked.insert(path);
    if (denied_.count(path) != 0) return FileState::denied;
    const auto place = place_of(path);
    if (!place) return FileState::missing;
    if (::access(place->c_str(), R_OK) == 0) return FileState::there;
    return errno == EACCES || errno == EPERM ? FileState::denied : FileState::missing;
}

std::optional<std::string> MachineFiles::link_target(const std::string& path) const {
    if (accesses_) accesses_->followed.insert(path);
    const auto slash = path.rfind('/');
    const auto folder = place_of(path.substr(0, slash + 1));
    if (!folder) return std::nullopt;
    std::array<char, 4096> target{};
    const std::string link = *folder + "/" + path.substr(slash + 1);
    const ssize_t got = ::readlink(link.c_str(), target.data(), target.size());
    if (got < 0) return std::nullopt;
    return std::string(target.data(), static_cast<std::size_t>(got));
}

std::string MachineFiles::real_path(const std::string& path) const {
    if (accesses_) accesses_->followed.insert(path);
    if (root_.empty()) return followed(path);
    const auto place = place_of(path);
    return place ? place->substr(real_root_.size()) : std::string();
}

std::vector<std::string> MachineFiles::strays() const {
    const std::lock_guard lock(strays_->mutex);
    return {strays_->paths.begin(), strays_->paths.end()};
}

std::optional<std::string> MachineFiles::place_of(const std::string& path) const {
    if (root_.empty()) return path;
    const std::string real = followed(root_ + path);
    if (real.empty()) return std::nullopt;
    if (real == real_root_ || real.rfind(real_root_ + "/", 0) == 0) return real;
    const std::lock_guard lock(strays_->mutex);
    strays_->paths.insert(path);
    return std::nullopt;
}

}  // namespace sidestep::driver
