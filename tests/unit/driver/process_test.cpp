// Whether a process runs, as others see it.
#include "driver/process.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

namespace sidestep::driver {
namespace {

ProcessMark mark_of(int process) {
    return {process, 0, this_process().numbering};
}

TEST(StillRuns, NotOnceItHasEnded) {
    EXPECT_TRUE(still_runs(this_process()));
    const pid_t child = ::fork();
    if (child == 0) {
        ::pause();
        ::_exit(0);
    }
    EXPECT_TRUE(still_runs(mark_of(child)));
    ::kill(child, SIGKILL);
    // It stays a zombie until it is waited for.
    siginfo_t ended{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
    EXPECT_FALSE(still_runs(mark_of(child)));
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_FALSE(still_runs(mark_of(child)));
}

// Its first thread is a zombie then, and the process is none.
TEST(StillRuns, WhileAnyThreadDoes) {
    const pid_t child = ::fork();
    if (child == 0) {
        std::thread([] { ::pause(); }).detach();
        ::syscall(SYS_exit, 0);  // this thread alone, and nothing of the test behind it
    }
    const auto state = [&] {
        std::string line;
        std::getline(std::ifstream("/proc/" + std::to_string(child) + "/stat"), line);
        return line.size() > line.rfind(')') + 2 ? line[line.rfind(')') + 2] : '?';
    };
    const auto start = std::chrono::steady_clock::now();
    while (state() != 'Z' && std::chrono::steady_clock::now() - start < std::chrono::seconds(20))
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(state(), 'Z');
    EXPECT_TRUE(still_runs(mark_of(child)));
    ::kill(child, SIGKILL);
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace sidestep::driver
