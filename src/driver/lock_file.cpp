#include "driver/lock_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/files.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

constexpr std::chrono::milliseconds pause_while_held{20};

// Another one may have removed it, and a third made one of that name, between the opening and the lock.
bool is_still_there(const Fd& fd, const std::string& path) {
    struct stat open {};
    struct stat named {};
    return ::fstat(fd.get(), &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
           open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

Error cannot_open(const std::string& path, int number) {
    struct stat status {};
    if (number != EACCES || ::lstat(path.c_str(), &status) != 0)
        return system_error(number, fmt::format("cannot open {}", path), "open");
    return Error{ErrorCode::permission_denied, fmt::format("{} belongs to user {}", path, status.st_uid),
                 path,
                 "wait for what that user does in the folder; if nothing runs any more, remove the file"};
}

}  // namespace

Result<std::unique_ptr<LockFile>> LockFile::take(const std::string& path, std::chrono::milliseconds wait) {
    const auto until = std::chrono::steady_clock::now() + wait;
    for (;;) {
        Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (!fd && errno == EINTR) continue;
        if (!fd) return cannot_open(path, errno);
        const bool held = ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (!held && is_still_there(fd, path)) {
            const std::string who = fmt::format("process {}\n", ::getpid());
            if (::ftruncate(fd.get(), 0) == 0) (void)write_range(fd, 0, who.data(), who.size(), path).ok();
            return std::unique_ptr<LockFile>(new LockFile(path, std::move(fd)));
        }
        if (held && std::chrono::steady_clock::now() >= until)
            return Error{ErrorCode::io_error,
                         fmt::format("{} holds {}", read_line(path).value_or("another process"), path),
                         path,
                         {}};
        if (held) std::this_thread::sleep_for(pause_while_held);
    }
}

// The name goes before the lock, so that no process waits for a file that is gone. The lock is released
// explicitly, not by closing the descriptor: a forked child holds the descriptor too.
LockFile::~LockFile() {
    ::unlink(path_.c_str());
    ::flock(fd_.get(), LOCK_UN);
}

}  // namespace sidestep::driver
