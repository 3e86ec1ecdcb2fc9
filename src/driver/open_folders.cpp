#include "driver/open_folders.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/try.hpp"
#include "driver/files.hpp"

namespace sidestep::driver {
namespace {

// The path may lead to another folder by now.
bool leads_to(const std::string& path, const Fd& fd) {
    struct stat named {};
    struct stat open {};
    return ::stat(path.c_str(), &named) == 0 && ::fstat(fd.get(), &open) == 0 &&
           named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

}  // namespace

Result<std::shared_ptr<const Fd>> OpenFolders::open(const std::string& folder) {
    std::shared_ptr<const Fd> held;
    {
        const std::lock_guard lock(mutex_);
        if (const auto found = open_.find(folder); found != open_.end()) held = found->second.lock();
    }
    // Without the lock: a server that does not answer would hold up whoever opens another folder.
    if (held && leads_to(folder, *held)) return held;
    SIDESTEP_TRY(Fd fd, open_file(folder, O_PATH | O_DIRECTORY));
    auto made = std::make_shared<const Fd>(std::move(fd));
    const std::lock_guard lock(mutex_);
    std::erase_if(open_, [](const auto& each) { return each.second.expired(); });
    // Another thread may have opened it meanwhile.
    std::weak_ptr<const Fd>& known = open_[folder];
    if (auto other = known.lock(); other && other != held) return other;
    known = made;
    return made;
}

}  // namespace sidestep::driver
