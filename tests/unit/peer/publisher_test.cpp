#include "peer/publisher.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "peer/importer.hpp"
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
    Result<Offered> find(Importer& by, const std::string& name) {
        return by.find(folder(), name, Clock::now() + std::chrono::seconds(20));
    }
    Result<Offered> find(const std::string& name) { return find(importer, name); }
    static bool lasts(const Offered& offered) {
        offered.connection->listen();
        return offered.connection->lasts(offered.offer.publication);
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
    std::atomic<int> ended{0};
    Importer importer{[this] { ++ended; }};
};

TEST_F(PublisherTest, SaysWhatItOffersWithItsDescriptor) {
    Publisher publisher;
    struct stat given {};
    ASSERT_EQ(::fstat(0, &given), 0);
    const auto id = publisher.publish(folder(), "kv", offer, 0);
    ASSERT_TRUE(id) << id.error().to_string();
    const auto found = find("kv");
    ASSERT_TRUE(found) << found.error().to_string();
    EXPECT_EQ(found->offer.scheme, "test");
    EXPECT_EQ(found->offer.size, 4096u);
    EXPECT_TRUE(found->connection->same_process());
    struct stat got {};
    ASSERT_EQ(::fstat(found->descriptor.get(), &got), 0);
    EXPECT_EQ(got.st_ino, given.st_ino);
    EXPECT_TRUE(lasts(*found));
}

TEST_F(PublisherTest, WithoutAThread) {
    Publisher publisher;
    {
        const test::NoThreads none;
        const auto id = publisher.publish(folder(), "kv", offer, -1);
        ASSERT_FALSE(id);
        EXPECT_EQ(id.error().code, ErrorCode::out_of_memory) << id.error().to_string();
    }
    const auto id = publisher.publish(folder(), "kv", offer, -1);  // the name is free again
    ASSERT_TRUE(id) << id.error().to_string();
    {
        const test::NoThreads none;
        const auto found = find("kv");
        ASSERT_FALSE(found);
        EXPECT_EQ(found.error().code, ErrorCode::out_of_memory) << found.error().to_string();
    }
    const auto found = find("kv");
    ASSERT_TRUE(found) << found.error().to_string();
    publisher.withdraw(*id);
    EXPECT_TRUE(soon([&] { return ended == 1; }));
}

TEST_F(PublisherTest, WithdrawnAtOnce) {
    Publisher publisher;
    const auto id = publisher.publish(folder(), "kv", offer, -1);
    ASSERT_TRUE(id) << id.error().to_string();
    ASSERT_TRUE(publisher.publish(folder(), "other", offer, -1));
    const auto found = find("kv");
    const auto other = find("other");
    ASSERT_TRUE(found && other);
    publisher.withdraw(*id);
    EXPECT_FALSE(lasts(*found));
    EXPECT_TRUE(lasts(*other));
    const auto gone = find("kv");
    ASSERT_FALSE(gone);
    EXPECT_EQ(gone.error().code, ErrorCode::not_found) << gone.error().to_string();
    EXPECT_TRUE(publisher.publish(folder(), "kv", offer, -1));
    EXPECT_TRUE(find("kv"));
    EXPECT_FALSE(lasts(*found)) << "which is another publication";
}

TEST_F(PublisherTest, TheEndOfThePublisherWithdrawsAll) {
    std::vector<Offered> all;
    {
        Publisher publisher;
        for (int i = 0; i < 50; ++i) {
            const std::string name = fmt::format("n{}", i);
            ASSERT_TRUE(publisher.publish(folder(), name, offer, -1));
            auto found = find(name);
            ASSERT_TRUE(found) << found.error().to_string();
            all.push_back(std::move(*found));
        }
        for (const Offered& one : all) EXPECT_TRUE(lasts(one));
    }
    for (const Offered& one : all) EXPECT_FALSE(lasts(one));
    EXPECT_TRUE(std::filesystem::is_empty(path));
    EXPECT_TRUE(soon([&] { return ended > 0; }));
}

std::size_t open_descriptors() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST_F(PublisherTest, ManyNamesAreOneSocketAndOneConnection) {
    const std::size_t before = open_descriptors();
    Publisher publisher;
    std::vector<Offered> all;
    for (int i = 0; i < 300; ++i) {
        ASSERT_TRUE(publisher.publish(folder(), fmt::format("n{}", i), offer, -1));
        auto found = find(fmt::format("n{}", i));
        ASSERT_TRUE(found) << found.error().to_string();
        all.push_back(std::move(*found));
        EXPECT_EQ(all.back().connection, all.front().connection);
    }
    // Of the publisher: a socket to listen at, one of a connection, one to be woken by, a spare one. Of the importer:
    // the other end, its process, one to be woken by.
    EXPECT_LE(open_descriptors(), before + 7);
    all.clear();
    importer.tidy();
    EXPECT_TRUE(soon([&] { return open_descriptors() <= before + 4; }))
        << "a connection that nobody needs stays";
    EXPECT_TRUE(find("n7"));
}

// As one that was forked before, or somebody who cleans up, may do.
TEST_F(PublisherTest, NamesThatSomebodyRemovedKeepNobodyFromPublishing) {
    Publisher publisher;
    for (const char* name : {"a", "b"}) ASSERT_TRUE(publisher.publish(folder(), name, offer, -1));
    const auto before = find("b");
    ASSERT_TRUE(before);
    for (const char* name : {"a", "b"}) std::filesystem::remove(folder().socket_of(name));
    for (const char* name : {"c", "d"}) {
        ASSERT_TRUE(publisher.publish(folder(), name, offer, -1)) << name;
        EXPECT_TRUE(find(name)) << name;
    }
    EXPECT_TRUE(lasts(*before));
}

TEST_F(PublisherTest, WhoFindsItFullHearsSo) {
    Publisher publisher(2);
    for (const char* name : {"kv", "other"}) ASSERT_TRUE(publisher.publish(folder(), name, offer, -1));
    Importer second([] {});
    Importer third([] {});
    const auto held = find("kv");
    {
        const auto also = find(second, "kv");
        ASSERT_TRUE(held && also);
        const auto refused = find(third, "kv");
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory) << refused.error().to_string();
        EXPECT_EQ(refused.error().message,
                  "the process that publishes has no room for more importers: 2 are there");
        EXPECT_TRUE(find(second, "other")) << "by the connection that it has";
    }
    second.tidy();
    EXPECT_TRUE(soon([&] { return find(third, "kv").ok(); }));
}

// As one of a program does that ends by exit().
TEST_F(PublisherTest, AForkedChildWithdrawsNothing) {
    auto publisher = std::make_unique<Publisher>();
    ASSERT_TRUE(publisher->publish(folder(), "kv", offer, -1).ok());
    const auto before = find("kv");
    ASSERT_TRUE(before) << before.error().to_string();
    const pid_t child = ::fork();
    if (child == 0) {
        publisher.reset();
        ::_exit(0);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_TRUE(lasts(*before));
    EXPECT_TRUE(find("kv"));
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
    EXPECT_TRUE(find("kv"));
}

// One that takes in nothing of what it is told: it is hung up on, and finds the publisher again.
TEST_F(PublisherTest, AnImporterThatDoesNotListenHoldsNobodyUp) {
    Publisher publisher;
    ASSERT_TRUE(publisher.publish(folder(), "kv", offer, -1));
    const auto until = Clock::now() + std::chrono::seconds(20);
    const auto deaf = driver::LocalSocket::connect(folder().socket_of("kv"), until);
    ASSERT_TRUE(deaf) << deaf.error().to_string();
    for (std::uint64_t question = 1; deaf->send(to_message({Word::ask, question, "kv"})).ok(); ++question)
        ASSERT_LT(question, 1'000'000u);
    EXPECT_TRUE(find("kv"));
    EXPECT_TRUE(soon([&] { return !deaf->send("x"); }));
}

TEST_F(PublisherTest, ManyAtOnce) {
    Publisher publisher;
    for (int i = 0; i < 40; ++i) ASSERT_TRUE(publisher.publish(folder(), fmt::format("n{}", i), offer, -1));
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 40; ++i) {
                const auto found = find(fmt::format("n{}", (i + 5 * t) % 40));
                EXPECT_TRUE(found) << found.error().to_string();
            }
        });
    for (std::thread& thread : threads) thread.join();
}

TEST_F(PublisherTest, AnImporterThatGoesMakesRoomForTheNext) {
    Publisher publisher(3);
    ASSERT_TRUE(publisher.publish(folder(), "kv", offer, -1));
    for (int i = 0; i < 300; ++i) {
        Importer one([] {});
        const auto found = find(one, "kv");
        ASSERT_TRUE(found) << i << ": " << found.error().to_string();
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
