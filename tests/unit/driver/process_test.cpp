// Whether a process runs, as others see it.
#include "driver/process.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "driver/local_socket.hpp"

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

constexpr int not_permitted = 77;  // an exit code

// In a child that `unshare` has put into namespaces of its own. False: this user may not do that, or the kernel cannot.
bool in_child(int namespaces, const std::function<bool()>& holds, bool& held) {
    const pid_t child = ::fork();
    if (child == 0) {
        if (::unshare(namespaces) != 0) ::_exit(not_permitted);
        const pid_t inside = ::fork();
        if (inside == 0) ::_exit(holds() ? 0 : 1);
        int status = 0;
        ::_exit(::waitpid(inside, &status, 0) == inside && WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    held = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return !(WIFEXITED(status) && WEXITSTATUS(status) == not_permitted);
}

// Clocks of other namespaces are shifted: when a process started looks different from there, and it still runs.
TEST(StillRuns, AsSeenFromOtherNamespaces) {
    const ProcessMark own = this_process();
    for (const int namespaces : {CLONE_NEWTIME, CLONE_NEWPID, CLONE_NEWTIME | CLONE_NEWPID}) {
        bool held = false;
        const bool permitted = in_child(
            namespaces,
            [&] {
                const ProcessMark here = this_process();
                return here.numbering != own.numbering && still_runs(own) && still_runs(here);
            },
            held);
        if (!permitted) GTEST_SKIP() << "namespaces cannot be made here";
        EXPECT_TRUE(held) << namespaces;
    }
}

// It may be another one's process with that number: here one that has ended, there one that runs.
TEST(StillRuns, WhateverTheProcOfAnotherNamespaceSays) {
    const pid_t ended = ::fork();
    if (ended == 0) ::_exit(0);
    siginfo_t zombie{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(ended), &zombie, WEXITED | WNOWAIT), 0);
    bool held = false;
    const bool permitted = in_child(
        CLONE_NEWPID,
        [&] {
            // The next number of this namespace, whose /proc is the one outside.
            std::ofstream("/proc/sys/kernel/ns_last_pid") << ended - 1;
            const pid_t child = ::fork();
            if (child == 0) {
                ::pause();
                ::_exit(0);
            }
            if (child != ended) ::_exit(not_permitted);
            const bool runs = still_runs(mark_of(child));
            ::kill(child, SIGKILL);
            return runs && ::waitpid(child, nullptr, 0) == child && !still_runs(mark_of(child));
        },
        held);
    EXPECT_EQ(::waitpid(ended, nullptr, 0), ended);
    if (!permitted) GTEST_SKIP() << "namespaces cannot be made here";
    EXPECT_TRUE(held);
}

// The number by which a rank knows itself is another process's here, or nobody's.
TEST(WatchPeer, OfASiblingNamespaceIsTheVeryProcess) {
    const std::string path = "/tmp/sidestep-watch-" + std::to_string(::getpid());
    const auto listener = LocalListener::bind(path);
    ASSERT_TRUE(listener.ok());
    bool held = false;
    const bool permitted = in_child(
        CLONE_NEWPID,
        [&] {
            const auto caller =
                LocalSocket::connect(path, std::chrono::steady_clock::now() + std::chrono::seconds(20));
            const auto watched = caller ? caller->watch_peer() : Result<Fd>(caller.error());
            if (!watched)
                return watched.error().code == ErrorCode::unsupported;  // by a kernel that does not tell
            pollfd entry{watched->get(), POLLIN, 0};
            return ::poll(&entry, 1, 200) == 0;  // the listener lives, whoever has its number here
        },
        held);
    ::unlink(path.c_str());
    if (!permitted) GTEST_SKIP() << "namespaces cannot be made here";
    EXPECT_TRUE(held);
}

}  // namespace
}  // namespace sidestep::driver
