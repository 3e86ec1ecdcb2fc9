#include "driver/replaced_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/files.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

constexpr int most_names = 100;  // of files that are being written under one name
constexpr std::string_view middle = ".sidestep-";
constexpr std::chrono::milliseconds pause_between_tries{10};

// ".NAME.sidestep-0", shortened where a file name could not hold it (255 bytes). Few names, so that what was left over is
// found without reading the folder.
std::string temporary_name(const std::string& name, int number) {
    return fmt::format(".{}{}{}", name.substr(0, 220), middle, number);
}

bool is_temporary(const std::string& name) {
    const auto at = name.rfind(middle);
    if (!name.starts_with('.') || at == std::string::npos || at == 0) return false;
    const std::string_view number = std::string_view(name).substr(at + middle.size());
    return !number.empty() && number.size() <= 3 &&
           std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// False where another process holds it. On file systems without such locks it excludes no one.
bool lock(const Fd& fd) {
    while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) return false;
        if (errno != EINTR) break;
    }
    return true;
}

// Whether the name leads to that very file.
bool has_name(const Fd& fd, const Fd& folder, const std::string& name) {
    struct stat open {};
    struct stat named {};
    return ::fstat(fd.get(), &open) == 0 &&
           ::fstatat(folder.get(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

// A temporary file that nobody locks is removed; `other` where there is none, and what is no file.
enum class Leftover { removed, locked, other };

Leftover try_to_remove(const Fd& folder, const std::string& name) {
    const Fd fd(::openat(folder.get(), name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return Leftover::other;
    // Without locks there is no way to know whether it is being written.
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? Leftover::locked : Leftover::other;
    const bool removed = has_name(fd, folder, name) && ::unlinkat(folder.get(), name.c_str(), 0) == 0;
    return removed ? Leftover::removed : Leftover::other;
}

bool remove_leftover(const Fd& folder, const std::string& name) {
    return try_to_remove(folder, name) == Leftover::removed;
}

}  // namespace

Result<ReplacedFile> ReplacedFile::begin(const std::string& path, bool unnamed, OpenFolders* folders) {
    SIDESTEP_TRY(const std::string target, follow_links(path));
    const auto [folder, name] = split_path(target);
    ReplacedFile file;
    file.path_ = path;
    file.name_ = name;
    SIDESTEP_TRY(const auto facts, file_facts(target));
    file.replaces_ = facts.has_value();
    if (file.replaces_ && !may_write(target)) {
        // On a file system that is mounted read-only it is no matter of rights.
        const int number = errno == EROFS || errno == ENOENT ? errno : EACCES;
        if (number != ENOENT) return system_error(number, fmt::format("may not write {}", path), "access");
        file.replaces_ = false;  // somebody has just removed it
    }
    OpenFolders own;
    SIDESTEP_TRY(file.folder_, (folders != nullptr ? *folders : own).open(folder));
    SIDESTEP_CHECK(file.open_unnamed_or_named(unnamed));
    file.keep_owner_and_mode();
    return file;
}

Result<void> ReplacedFile::open_unnamed_or_named(bool unnamed) {
    // A nameless file gets its name through /proc (link_as()), which a chroot may lack.
    unnamed = unnamed && ::access("/proc/self/fd", F_OK) == 0;
    // The mode goes through the process's umask, as for any new file.
    if (unnamed) fd_ = Fd(::openat(folder_->get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666));
    if (fd_) return {};
    // EISDIR and ENOENT: kernels and file systems that take O_TMPFILE for its O_DIRECTORY part.
    int number = unnamed ? errno : EOPNOTSUPP;
    if (number == EOPNOTSUPP || number == EISDIR || number == ENOENT || number == EINVAL) {
        if (open_named(number)) return {};
    }
    return system_error(number, fmt::format("cannot create a file beside {}", path_), "open",
                        number == EACCES && replaces_
                            ? "give the range to write (offset and size) to write the file in place"
                            : "");
}

// False with the number of an error.
bool ReplacedFile::open_named(int& number) {
    number = EEXIST;
    // Nobody else may open it before it has the mode of the one that it replaces.
    const mode_t mode = replaces_ ? 0600 : 0666;
    for (int i = 0; i < most_names; ++i) {
        const std::string name = temporary_name(name_, i);
        // Again where a leftover was in the way, or one that removes leftovers took this for one before it was locked.
        for (int tries = 0; tries < 3; ++tries) {
            Fd named(::openat(folder_->get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
            if (!named) {
                number = errno;
                if (number != EEXIST && number != EINTR) return false;
                if (number == EEXIST && !remove_leftover(*folder_, name)) break;
                continue;
            }
            if (!lock(named) || !has_name(named, *folder_, name)) continue;
            fd_ = std::move(named);
            temporary_ = name;
            return true;
        }
    }
    return false;
}

void ReplacedFile::keep_owner_and_mode() {
    if (!replaces_) return;
    struct stat old {};
    struct stat now {};
    // A link that another user has made to it meanwhile gives them no rights.
    if (::fstatat(folder_->get(), name_.c_str(), &old, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(old.st_mode) ||
        ::fstat(fd_.get(), &now) != 0)
        return;
    mode_t mode = old.st_mode & 07777;
    if ((old.st_uid != now.st_uid || old.st_gid != now.st_gid) &&
        ::fchown(fd_.get(), old.st_uid, old.st_gid) != 0) {
        mode &= 01777;  // set-user-id and set-group-id would lend the rights of whom it belongs to now
        notes_.push_back(fmt::format("{} now belongs to user {} and group {}, no longer to {} and {}: {}",
                                     path_, now.st_uid, now.st_gid, old.st_uid, old.st_gid,
                                     system_words(errno)));
    }
    // After the owner, since chown takes set-user-id bits away.
    if (::fchmod(fd_.get(), mode) != 0) {
        notes_.push_back(fmt::format("{} could not keep its mode: {}", path_, system_words(errno)));
    }
}

ReplacedFile::~ReplacedFile() {
    if (fd_ && !temporary_.empty()) ::unlinkat(folder_->get(), temporary_.c_str(), 0);
}

// `exists` says that another file has the name; no error then.
Result<void> ReplacedFile::link_as(const std::string& name, bool& exists) const {
    const std::string self = fmt::format("/proc/self/fd/{}", fd_.get());
    exists = false;
    if (::linkat(AT_FDCWD, self.c_str(), folder_->get(), name.c_str(), AT_SYMLINK_FOLLOW) == 0) return {};
    exists = errno == EEXIST;
    if (exists) return {};
    return system_error(errno, fmt::format("cannot give {} its name", path_), "linkat");
}

Result<void> ReplacedFile::name_unnamed() {
    lock(fd_);
    for (int i = 0; i < most_names; ++i) {
        const std::string name = temporary_name(name_, i);
        bool exists = false;
        SIDESTEP_CHECK(link_as(name, exists));
        if (exists && remove_leftover(*folder_, name)) SIDESTEP_CHECK(link_as(name, exists));
        if (!exists) {
            temporary_ = name;
            return {};
        }
    }
    return system_error(EEXIST, fmt::format("cannot find a free name beside {}", path_), "linkat");
}

Result<void> ReplacedFile::commit(bool sync) {
    if (sync) SIDESTEP_CHECK(flush_file(fd_, path_));
    bool named = false;
    if (temporary_.empty() && !replaces_) {
        bool exists = false;
        SIDESTEP_CHECK(link_as(name_, exists));
        named = !exists;
    }
    if (!named) {
        if (temporary_.empty()) SIDESTEP_CHECK(name_unnamed());
        if (::renameat(folder_->get(), temporary_.c_str(), folder_->get(), name_.c_str()) != 0) {
            return system_error(
                errno, fmt::format("cannot replace {}", path_), "rename",
                errno == EBUSY ? "the file is a mount point; write it in place by giving a range" : "");
        }
        temporary_.clear();
    }
    if (sync) {
        // Without this the name could be lost by a power cut, though the bytes are not.
        const Fd folder(::openat(folder_->get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!folder || ::fsync(folder.get()) != 0) {
            notes_.push_back(fmt::format("the folder of {} was not flushed: {}", path_, system_words(errno)));
        }
    }
    return {};
}

Result<std::vector<std::string>> remove_leftovers(const std::string& folder, std::chrono::milliseconds wait) {
    const auto until = std::chrono::steady_clock::now() + wait;
    SIDESTEP_TRY(const Fd open, open_file(folder, O_PATH | O_DIRECTORY));
    SIDESTEP_TRY(std::vector<std::string> names, names_in(folder, Hidden::too));
    std::erase_if(names, [&](const std::string& name) {
        if (!is_temporary(name)) return true;
        Leftover found = try_to_remove(open, name);
        while (found == Leftover::locked && std::chrono::steady_clock::now() < until) {
            std::this_thread::sleep_for(pause_between_tries);
            found = try_to_remove(open, name);
        }
        return found != Leftover::removed;
    });
    return names;
}

}  // namespace sidestep::driver
