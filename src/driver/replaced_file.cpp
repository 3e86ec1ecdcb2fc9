#include "driver/replaced_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/files.hpp"
#include "driver/random.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

constexpr int name_attempts = 100;

// ".NAME.sidestep-0a1b2c3d4e5f", shortened where a file name could not hold it (255 bytes).
std::string temporary_name(const std::string& name) {
    return fmt::format(".{}.sidestep-{:012x}", name.substr(0, 220), random_number() & 0xFFFF'FFFF'FFFFull);
}

}  // namespace

Result<ReplacedFile> ReplacedFile::begin(const std::string& path, bool unnamed) {
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
    SIDESTEP_TRY(file.folder_, open_file(folder, O_PATH | O_DIRECTORY));
    SIDESTEP_CHECK(file.open_unnamed_or_named(unnamed));
    file.keep_owner_and_mode();
    return file;
}

Result<void> ReplacedFile::open_unnamed_or_named(bool unnamed) {
    // The mode goes through the process's umask, as for any new file.
    if (unnamed) fd_ = Fd(::openat(folder_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666));
    if (fd_) return {};
    // EISDIR and ENOENT: kernels and file systems that take O_TMPFILE for its O_DIRECTORY part.
    int number = unnamed ? errno : EOPNOTSUPP;
    if (number == EOPNOTSUPP || number == EISDIR || number == ENOENT || number == EINVAL) {
        for (int i = 0; i < name_attempts; ++i) {
            const std::string name = temporary_name(name_);
            const int named =
                ::openat(folder_.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            if (named >= 0) {
                fd_ = Fd(named);
                temporary_ = name;
                return {};
            }
            number = errno;
            if (number != EEXIST && number != EINTR) break;
        }
    }
    return system_error(number, fmt::format("cannot create a file beside {}", path_), "open",
                        number == EACCES && replaces_
                            ? "give the range to write (offset and size) to write the file in place"
                            : "");
}

void ReplacedFile::keep_owner_and_mode() {
    if (!replaces_) return;
    struct stat old {};
    struct stat now {};
    if (::fstatat(folder_.get(), name_.c_str(), &old, 0) != 0 || ::fstat(fd_.get(), &now) != 0) return;
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
    if (fd_ && !temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
}

// `exists` says that another file has the name; no error then.
Result<void> ReplacedFile::link_as(const std::string& name, bool& exists) const {
    const std::string self = fmt::format("/proc/self/fd/{}", fd_.get());
    exists = false;
    if (::linkat(AT_FDCWD, self.c_str(), folder_.get(), name.c_str(), AT_SYMLINK_FOLLOW) == 0) return {};
    exists = errno == EEXIST;
    if (exists) return {};
    return system_error(errno, fmt::format("cannot give {} its name", path_), "linkat");
}

Result<void> ReplacedFile::name_unnamed() {
    for (int i = 0; i < name_attempts; ++i) {
        const std::string name = temporary_name(name_);
        bool exists = false;
        SIDESTEP_CHECK(link_as(name, exists));
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
        if (::renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str()) != 0) {
            return system_error(
                errno, fmt::format("cannot replace {}", path_), "rename",
                errno == EBUSY ? "the file is a mount point; write it in place by giving a range" : "");
        }
        temporary_.clear();
    }
    if (sync) {
        // Without this the name could be lost by a power cut, though the bytes are not.
        const Fd folder(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!folder || ::fsync(folder.get()) != 0) {
            notes_.push_back(fmt::format("the folder of {} was not flushed: {}", path_, system_words(errno)));
        }
    }
    return {};
}

}  // namespace sidestep::driver
