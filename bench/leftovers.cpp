#include "bench/leftovers.hpp"

#include <signal.h>
#include <unistd.h>

#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "bench/case.hpp"

namespace sidestep::bench {
namespace {

struct Leftovers {
    std::mutex mutex;  // guards what follows
    std::set<std::string> files;
    std::set<pid_t> processes;
};

// Never freed: an interrupt comes at any time.
Leftovers& leftovers() {
    static Leftovers& one = *new Leftovers;
    return one;
}

}  // namespace

Result<std::filesystem::path> scratch_folder(const Options& options) {
    if (!options.folder.empty()) return std::filesystem::path(options.folder);
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    if (error)
        return Error{ErrorCode::not_found, "there is no folder for temporary files", {}, "use --folder"};
    return folder;
}

ScratchFile::ScratchFile(std::string path) : path_(std::move(path)) {
    const std::lock_guard lock(leftovers().mutex);
    leftovers().files.insert(path_);
}

ScratchFile::ScratchFile(ScratchFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}

ScratchFile::~ScratchFile() {
    if (path_.empty()) return;
    ::unlink(path_.c_str());
    const std::lock_guard lock(leftovers().mutex);
    leftovers().files.erase(path_);
}

void remember_process(pid_t process) {
    const std::lock_guard lock(leftovers().mutex);
    leftovers().processes.insert(process);
}

void forget_process(pid_t process) {
    const std::lock_guard lock(leftovers().mutex);
    leftovers().processes.erase(process);
}

void remove_leftovers() {
    const std::lock_guard lock(leftovers().mutex);
    for (const pid_t process : leftovers().processes) ::kill(process, SIGKILL);
    for (const std::string& file : leftovers().files) ::unlink(file.c_str());
}

}  // namespace sidestep::bench
