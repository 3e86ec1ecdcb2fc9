#include "peer/folder.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>

#include <gtest/gtest.h>

namespace sidestep::peer {
namespace {

class PeerNames : public testing::Test {
protected:
    PeerNames() {
        std::string name = "/tmp/sidestep-folder-XXXXXX";
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        path = name;
    }
    ~PeerNames() override {
        std::filesystem::remove_all(path);
        if (child > 0) ::kill(child, SIGKILL);
    }

    Folder folder() const { return std::move(Folder::open(path, true)).value(); }

    // A socket that has its name and does not listen yet.
    driver::Fd bound(const std::string& name) const {
        driver::Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        const std::string file = folder().socket_of(name);
        std::memcpy(address.sun_path, file.c_str(), file.size() + 1);
        EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
        return fd;
    }

    // What another process that takes a name holds meanwhile.
    std::unique_ptr<driver::FolderLock> hold() const { return std::move(folder().hold()).value(); }

    // A process that listened under two names and is dead, and a child of it that has its socket and lives on.
    void die_and_leave_a_child() {
        int told[2] = {-1, -1};
        ASSERT_EQ(::pipe2(told, O_CLOEXEC), 0);
        const pid_t owner = ::fork();
        if (owner == 0) {
            const driver::Fd socket = bound("kv");
            if (::listen(socket.get(), 8) != 0 ||
                ::link((path + "/kv").c_str(), (path + "/other").c_str()) != 0)
                ::_exit(1);
            child = ::fork();
            if (child == 0) ::alarm(300);
            if (child != 0) (void)!::write(told[1], &child, sizeof child);
            for (;;) ::pause();
        }
        EXPECT_EQ(::read(told[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
        EXPECT_EQ(driver::look_at_socket(path + "/kv").value(), driver::SocketPath::live);
        ::kill(owner, SIGKILL);
        ::waitpid(owner, nullptr, 0);
        for (const int fd : told) ::close(fd);
    }

    pid_t child = 0;
    std::string path;
};

TEST_F(PeerNames, ANameIsTakenOnce) {
    auto first = folder().take("kv");
    ASSERT_TRUE(first) << first.error().to_string();
    ASSERT_TRUE(first->has_value());
    const auto second = folder().take("kv");
    ASSERT_TRUE(second) << second.error().to_string();
    EXPECT_FALSE(second->has_value());
    EXPECT_TRUE(driver::LocalSocket::connect(folder().socket_of("kv"), {})) << "the first is still there";
    first->reset();
    const auto after = folder().take("kv");
    ASSERT_TRUE(after) << after.error().to_string();
    EXPECT_TRUE(after->has_value()) << "what nobody listens at any more is replaced";
}

TEST_F(PeerNames, WhoIsAboutToListenIsNotTakenForDead) {
    auto other = hold();
    const driver::Fd socket = bound("kv");
    auto taking = std::async(std::launch::async, [&] { return folder().take("kv"); });
    EXPECT_EQ(taking.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
    ASSERT_EQ(::listen(socket.get(), 8), 0);
    other.reset();
    const auto taken = taking.get();
    ASSERT_TRUE(taken) << taken.error().to_string();
    EXPECT_FALSE(taken->has_value());
    EXPECT_TRUE(driver::LocalSocket::connect(folder().socket_of("kv"), {}));
}

TEST_F(PeerNames, WhatADeadProcessLeftIsTakenThoughAChildOfItHasTheSocket) {
    die_and_leave_a_child();
    EXPECT_FALSE(driver::LocalSocket::connect(folder().socket_of("kv"), {}));
    auto taken = folder().take("kv");
    ASSERT_TRUE(taken) << taken.error().to_string();
    ASSERT_TRUE(taken->has_value());
    EXPECT_FALSE(std::filesystem::exists(path + "/other")) << "the other name of the dead one";
    EXPECT_TRUE(driver::LocalSocket::connect(folder().socket_of("kv"), {}));
    EXPECT_EQ(::kill(child, 0), 0) << "it lives on";
}

TEST_F(PeerNames, OnlyWhatIsDeadIsTidiedAway) {
    (void)bound("dead");
    std::filesystem::create_hard_link(folder().socket_of("dead"), folder().socket_of("dead2"));
    auto live = folder().take("live");
    ASSERT_TRUE(live && live->has_value());
    for (const char* name : {"dead", "live", "absent"}) EXPECT_TRUE(folder().tidy(name)) << name;
    EXPECT_FALSE(std::filesystem::exists(folder().socket_of("dead")));
    EXPECT_FALSE(std::filesystem::exists(folder().socket_of("dead2")));
    EXPECT_TRUE(std::filesystem::exists(folder().socket_of("live")));
}

TEST_F(PeerNames, TidyingWaitsForNobody) {
    (void)bound("dead");
    const auto live = folder().take("live");
    ASSERT_TRUE(live && live->has_value());
    const auto other = hold();
    for (const char* name : {"dead", "live", "absent"}) {
        const auto tidied = folder().tidy(name);
        EXPECT_TRUE(tidied) << tidied.error().to_string();
    }
    EXPECT_TRUE(std::filesystem::exists(folder().socket_of("dead"))) << "somebody may be about to take it";
}

TEST_F(PeerNames, WhatIsNoSocketIsLeftThere) {
    std::filesystem::create_directory(folder().socket_of("kv"));
    const auto taken = folder().take("kv");
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, ErrorCode::invalid_argument) << taken.error().to_string();
    EXPECT_TRUE(std::filesystem::exists(folder().socket_of("kv")));
}

}  // namespace
}  // namespace sidestep::peer
