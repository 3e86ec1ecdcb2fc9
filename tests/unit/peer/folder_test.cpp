#include "peer/folder.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
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
    ~PeerNames() override { std::filesystem::remove_all(path); }

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
    driver::Fd hold() const {
        driver::Fd fd(::open((path + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR));
        struct flock range {};
        range.l_type = F_WRLCK;
        range.l_whence = SEEK_SET;
        EXPECT_EQ(::fcntl(fd.get(), F_OFD_SETLK, &range), 0);
        return fd;
    }

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
    driver::Fd other = hold();
    const driver::Fd socket = bound("kv");
    auto taking = std::async(std::launch::async, [&] { return folder().take("kv"); });
    EXPECT_EQ(taking.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
    ASSERT_EQ(::listen(socket.get(), 8), 0);
    other = driver::Fd();
    const auto taken = taking.get();
    ASSERT_TRUE(taken) << taken.error().to_string();
    EXPECT_FALSE(taken->has_value());
    EXPECT_TRUE(driver::LocalSocket::connect(folder().socket_of("kv"), {}));
}

TEST_F(PeerNames, OnlyWhatIsDeadIsTidiedAway) {
    (void)bound("dead");
    auto live = folder().take("live");
    ASSERT_TRUE(live && live->has_value());
    for (const char* name : {"dead", "live", "absent"}) EXPECT_TRUE(folder().tidy(name)) << name;
    EXPECT_FALSE(std::filesystem::exists(folder().socket_of("dead")));
    EXPECT_TRUE(std::filesystem::exists(folder().socket_of("live")));
}

TEST_F(PeerNames, TidyingWaitsForNobodyWhereNothingIsToBeRemoved) {
    const auto live = folder().take("live");
    ASSERT_TRUE(live && live->has_value());
    const driver::Fd other = hold();
    for (const char* name : {"live", "absent"}) {
        const auto tidied = folder().tidy(name);
        EXPECT_TRUE(tidied) << tidied.error().to_string();
    }
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
