// Folders in which files are being written.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <sidestep/result.hpp>
#include "driver/fd.hpp"

namespace sidestep::driver {

// One descriptor for all files of a folder: a save may write more files at once than a process may have descriptors for each.
class OpenFolders {
public:
    // Opened with O_PATH, and closed with the last that holds it. Any thread.
    Result<std::shared_ptr<const Fd>> open(const std::string& folder);

private:
    std::mutex mutex_;  // guards the next
    std::map<std::string, std::weak_ptr<const Fd>> open_;
};

}  // namespace sidestep::driver
