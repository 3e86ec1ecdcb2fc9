#include "driver/machine_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>

namespace sidestep::driver {

namespace {

std::string trimmed(const std::string& text) {
    const auto first = text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::optional<std::string> read_text(const std::string& path, std::size_t max) {
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

}  // namespace

MachineFiles::MachineFiles(std::string root) : root_(std::move(root)) {
    if (root_.empty()) return;
    const std::string list = read_text(root_ + denied_list, std::size_t{1} << 20).value_or("");
    for (std::size_t at = 0; at < list.size();) {
        const std::size_t end = std::min(list.find('\n', at), list.size());
        denied_.insert(list.substr(at, end - at));
        at = end + 1;
    }
}

std::optional<std::string> MachineFiles::line(const std::string& path) const {
    if (accesses_) accesses_->read.insert(path);
    if (denied_.count(path) != 0) return std::nullopt;
    const auto read = read_text(root_ + path, 4096);
    if (!read) return std::nullopt;
    return trimmed(read->substr(0, read->find('\n')));
}

std::optional<std::string> MachineFiles::text(const std::string& path, std::size_t max) const {
    if (accesses_) accesses_->read.insert(path);
    if (denied_.count(path) != 0) return std::nullopt;
    return read_text(root_ + path, max);
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
    const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir((root_ + folder).c_str()), ::closedir);
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
    return ::access((root_ + path).c_str(), F_OK) == 0;
}

FileState MachineFiles::state(const std::string& path) const {
    if (accesses_) accesses_->asked.insert(path);
    if (denied_.count(path) != 0) return FileState::denied;
    if (::access((root_ + path).c_str(), R_OK) == 0) return FileState::there;
    return errno == EACCES || errno == EPERM ? FileState::denied : FileState::missing;
}

std::optional<std::string> MachineFiles::link_target(const std::string& path) const {
    if (accesses_) accesses_->followed.insert(path);
    std::array<char, 4096> target{};
    const ssize_t got = ::readlink((root_ + path).c_str(), target.data(), target.size());
    if (got < 0) return std::nullopt;
    return std::string(target.data(), static_cast<std::size_t>(got));
}

std::string MachineFiles::real_path(const std::string& path) const {
    if (accesses_) accesses_->followed.insert(path);
    const auto follow = [](const std::string& from) {
        const std::unique_ptr<char, void (*)(void*)> real(::realpath(from.c_str(), nullptr), std::free);
        return real == nullptr ? std::string() : std::string(real.get());
    };
    const std::string real = follow(root_ + path);
    if (root_.empty()) return real;
    const std::string real_root = follow(root_);
    if (real_root.empty() || real.rfind(real_root + "/", 0) != 0) return {};
    return real.substr(real_root.size());
}

}  // namespace sidestep::driver
