// How many threads read the files of a checkpoint.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "checkpoint/block_reader.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint_files.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr int cannot = 77;
constexpr std::size_t blocks = 8;

// Whether this process now lives in a control group with the time of one processor, or sees it so.
bool limit_to_one_processor() {
    const bool alone = ::unshare(CLONE_NEWNS) == 0 &&
                       ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                       ::mount("none", "/sys/fs/cgroup", "tmpfs", 0, nullptr) == 0;
    return alone && (std::ofstream("/sys/fs/cgroup/cpu.max") << "100000 100000\n").flush().good();
}

// Threads that looked at blocks. The first one waits for a second, which has all the time it needs.
std::size_t threads_that_read(const std::vector<CheckpointFile>& files) {
    std::mutex mutex;
    std::condition_variable another;
    std::set<std::thread::id> seen;
    const auto done =
        read_blocks(files,
                    [&](std::size_t, Bytes, const void*, Bytes) -> Result<void> {
                        std::unique_lock lock(mutex);
                        const bool first = seen.empty();
                        seen.insert(std::this_thread::get_id());
                        another.notify_all();
                        if (first)
                            another.wait_for(lock, std::chrono::seconds(2), [&] { return seen.size() > 1; });
                        return {};
                    },
                    {});
    return done ? seen.size() : 0;
}

TEST(Readers, AreNoMoreThanTheControlGroupHasProcessors) {
    const Folder folder;
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < blocks; ++i)
        paths.push_back(folder.write(std::to_string(i) + ".safetensors", small_file({std::to_string(i)})));
    // Opened in the child: threads that read headers here might not have gone when it is forked.
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        if (!limit_to_one_processor()) ::_exit(cannot);
        const auto checkpoint = Checkpoint::open(paths);
        ::_exit(checkpoint ? static_cast<int>(threads_that_read(checkpoint->files())) : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << status;
    if (WEXITSTATUS(status) == cannot)
        GTEST_SKIP() << "this process may not mount a control group of its own";
    EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace sidestep::checkpoint
