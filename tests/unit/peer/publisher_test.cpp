#include "peer/publisher.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "peer/watcher.hpp"
#include "tests/no_threads.hpp"

namespace sidestep::peer {
namespace {

using Clock = std::chrono::steady_clock;

class PublisherTest : public testing::Test {
protected:
    PublisherTest() {
        std::string name = "/tmp/sidestep-peer-XXXXXX";
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        path = name;
        offer.scheme = "test";
        offer.place = Place::gpu(0);
        offer.size = 4096;
    }
    ~PublisherTest() override { std::filesystem::remove_all(path); }

    Folder folder() { return std::move(Folder::open(path, true)).value(); }
    Result<Connection> connect(const std::string& name) {
        return Connection::open(folder(), name, Clock::now() + std::chrono::seconds(20));
    }
    // Whether a condition comes true within 20 s.
    template <typename Condition>
    static bool soon(Condition condition) {
        const auto until = Clock::now() + std::chrono::seconds(20);
        while (!condition()) {
            if (Clock::now() > until) return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return true;
    }

    std::string path;
    MemoryOffer offer;
};

TEST_F(PublisherTest, SaysWhatItOffersWithItsDescriptor) {
    Publisher publisher;
    struct stat given {};
    ASSERT_EQ(::fstat(0, &given), 0);
    const auto id = publisher.publish(folder(), "kv", offer, 0);
    ASSERT_TRUE(id) << id.error().to_string();
    auto connection = connect("kv");
    ASSERT_TRUE(connection) << connection.error().to_string();
    EXPECT_EQ(connection->offer().scheme, "test");
    EXPECT_EQ(connection->offer().size, 4096u);
    EXPECT_TRUE(connection->same_process());
    struct stat got {};
    ASSERT_EQ(::fstat(connection->descriptor(), &got), 0);
    EXPECT_EQ(got.st_ino, given.st_ino);
    EXPECT_FALSE(connection->closed());
}

TEST_F(PublisherTest, WithoutAThread) {
    Publisher publisher;
    std::atomic<int> ended{0};
    Watcher watcher([&](const Connection&) { ++ended; });
    {
        const test::NoThreads none;
        const auto id = publisher.publish(folder(), "kv", offer, -1);
        ASSERT_FALSE(id);
        EXPECT_EQ(id.error().code, ErrorCode::out_of_memory) << id.error().to_string();
    }
    const auto id = publisher.publish(folder(), "kv", offer, -1);  // the name is free again
    ASSERT_TRUE(id) << id.error().to_string();
    const auto connection = std::make_shared<const Connection>(std::move(connect("kv")).value());
    {
        const test::NoThreads none;
        const auto watched = watcher.add(connection);
        ASSERT_FALSE(watched);
        EXPECT_EQ(watched.error().code, ErrorCode::out_of_memory) << watched.error().to_string();
    }
    ASSERT_TRUE(watcher.add(connection));
    publisher.withdraw(*id);
    EXPECT_TRUE(soon([&] { return ended == 1; }));
}

TEST_F(PublisherTest, WithdrawnAtOnce) {
    Publisher publisher;
    const auto id = publisher.publish(folder(), "kv", offer, -1);
    ASSERT_TRUE(id) << id.error().to_string();
    const auto connection = connect("kv");
    ASSERT_TRUE(connection) << connection.error().to_string();
    publisher.withdraw(*id);
    EXPECT_TRUE(connection->closed());
    const auto gone = connect("kv");
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().code, ErrorCode::not_found) << gone.error().to_string();
    EXPECT_TRUE(publisher.publish(folder(), "kv", offer, -1));
}

TEST_F(PublisherTest, TheEndOfThePublisherWithdrawsAll) {
    std::vector<Connection> connections;
    {
        Publisher publisher;
        for (int i = 0; i < 50; ++i) {
            const std::string name = fmt::format("n{}", i);
            ASSERT_TRUE(publisher.publish(folder(), name, offer, -1));
            auto connection = connect(name);
            ASSERT_TRUE(connection) << connection.error().to_string();
            connections.push_back(std::move(*connection));
        }
        for (const Connection& connection : connections) EXPECT_FALSE(connection.closed());
    }
    for (const Connection& connection : connections) EXPECT_TRUE(connection.closed());
    for (const auto& entry : std::filesystem::directory_iterator(path))
        EXPECT_EQ(entry.path().filename(), ".lock");
}

// As one of a program does that ends by exit().
TEST_F(PublisherTest, AForkedChildWithdrawsNothing) {
    auto publisher = std::make_unique<Publisher>();
    ASSERT_TRUE(publisher->publish(folder(), "kv", offer, -1).ok());
    const auto before = connect("kv");
    ASSERT_TRUE(before) << before.error().to_string();
    const pid_t child = ::fork();
    if (child == 0) {
        publisher.reset();
        ::_exit(0);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_FALSE(before->closed());
    const auto after = connect("kv");
    EXPECT_TRUE(after) << after.error().to_string();
}

TEST_F(PublisherTest, OneNameOnePublisher) {
    Publisher publisher;
    Publisher other;
    ASSERT_TRUE(publisher.publish(folder(), "kv", offer, -1));
    for (Publisher* second : {&publisher, &other}) {
        const auto taken = second->publish(folder(), "kv", offer, -1);
        ASSERT_FALSE(taken);
        EXPECT_EQ(taken.error().code, ErrorCode::invalid_argument) << taken.error().to_string();
    }
    EXPECT_TRUE(connect("kv"));
}

TEST_F(PublisherTest, WatcherTellsOfEachEndOnce) {
    std::atomic<int> ended{0};
    Watcher watcher([&](const Connection&) { ++ended; });
    Publisher publisher;
    std::vector<std::uint64_t> ids;
    for (int i = 0; i < 3; ++i) {
        const std::string name = fmt::format("n{}", i);
        ids.push_back(*publisher.publish(folder(), name, offer, -1));
        auto connection = connect(name);
        ASSERT_TRUE(connection) << connection.error().to_string();
        auto shared = std::make_shared<const Connection>(std::move(*connection));
        ASSERT_TRUE(watcher.add(shared));
        if (i == 2) watcher.remove(*shared);
    }
    for (const std::uint64_t id : ids) publisher.withdraw(id);
    EXPECT_TRUE(soon([&] { return ended == 2; }));
    EXPECT_EQ(ended, 2);
}

TEST_F(PublisherTest, AnImporterThatGoesMakesRoomForTheNext) {
    Publisher publisher;
    ASSERT_TRUE(publisher.publish(folder(), "kv", offer, -1));
    for (int i = 0; i < 5000; ++i) {
        const auto connection = connect("kv");
        ASSERT_TRUE(connection) << i << ": " << connection.error().to_string();
    }
}

TEST(FolderTest, MadeForThisUserAlone) {
    std::string base = "/tmp/sidestep-folder-XXXXXX";
    ASSERT_NE(::mkdtemp(base.data()), nullptr);
    const std::string path = base + "/peers";
    const auto absent = Folder::open(path, false);
    ASSERT_FALSE(absent);
    EXPECT_EQ(absent.error().code, ErrorCode::not_found) << absent.error().to_string();
    ASSERT_TRUE(Folder::open(path, true));
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    for (const mode_t open_to_others : {0720, 0702, 0777}) {
        ::chmod(path.c_str(), open_to_others);
        const auto refused = Folder::open(path, true);
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::permission_denied) << refused.error().to_string();
    }
    std::filesystem::remove_all(base);
}

TEST(FolderTest, DefaultIsAFolderOfThisUser) {
    const auto folder = Folder::open("", true);
    ASSERT_TRUE(folder) << folder.error().to_string();
    const bool run = folder->path() == fmt::format("/run/user/{}/sidestep", ::geteuid());
    const bool tmp = folder->path() == fmt::format("/tmp/sidestep-{}", ::geteuid());
    EXPECT_TRUE(run || tmp) << folder->path();
}

}  // namespace
}  // namespace sidestep::peer
