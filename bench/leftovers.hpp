// What a bench has made outside of its process, files and other processes, so that an interrupt leaves none of it.
#pragma once

#include <filesystem>
#include <string>

#include <sidestep/result.hpp>

#include <sys/types.h>

namespace sidestep::bench {

struct Options;

// The folder for files that an option names, else that for temporary ones.
Result<std::filesystem::path> scratch_folder(const Options& options);

// The name of a file that may be made; who goes removes it.
class ScratchFile {
public:
    explicit ScratchFile(std::string path);
    ScratchFile(ScratchFile&& other) noexcept;
    ScratchFile& operator=(ScratchFile&&) = delete;
    ~ScratchFile();
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

// A process that was started: its own number, or that of its group as a negative one. To be forgotten before
// it is waited for, since its number may be another one's afterwards.
void remember_process(pid_t process);
void forget_process(pid_t process);

// Kills the processes and removes the files there are now. From any thread; the bench cannot go on after it.
void remove_leftovers();

}  // namespace sidestep::bench
