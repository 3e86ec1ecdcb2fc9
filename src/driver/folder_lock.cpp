#include "driver/folder_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <utility>

#include "base/try.hpp"
#include "driver/files.hpp"

namespace sidestep::driver {

Result<std::unique_ptr<FolderLock>> FolderLock::try_take(const std::string& folder) {
    SIDESTEP_TRY(Fd opened, open_file(folder, O_RDONLY | O_DIRECTORY));
    while (::flock(opened.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) return std::unique_ptr<FolderLock>();
        if (errno != EINTR) break;  // EBADF, ENOLCK, EOPNOTSUPP: network file systems
    }
    return std::unique_ptr<FolderLock>(new FolderLock(std::move(opened)));
}

// By itself, and not by the descriptor's end: a forked child has that too.
FolderLock::~FolderLock() {
    ::flock(folder_.get(), LOCK_UN);
}

}  // namespace sidestep::driver
