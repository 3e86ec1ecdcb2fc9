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
    const std::lock_guard lock(mutex_);
    if (const auto found = open_.find(folder); found != open_.end())
        if (auto held = found->second.lock(); held && leads_to(folder, *held)) return held;
    SIDESTEP_TRY(Fd fd, open_file(folder, O_PATH | O_DIRECTORY));
    auto made = std::make_shared<const Fd>(std::move(fd));
    std::erase_if(open_, [](const auto& each) { return each.second.expired(); });
    open_[folder] = made;
    return made;
}

}  // namespace sidestep::driver
