// What clients tell a node, checksums of what they move, and the bound on how fast.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/network/nodes.hpp"
#include "tests/network/proxy.hpp"

namespace sidestep {
namespace {

using std::chrono::milliseconds;
using test::Proxy;

class Notify : public test::Nodes {
protected:
    Context through(const Proxy& way, bool checksums) const {
        ContextOptions options{"dgx-h100"};
        options.nodes = "n=" + way.address();
        options.key_file = path("key");
        options.network_checksums = checksums;
        return Context::open(std::move(options)).value();
    }
};

TEST_F(Notify, TextsComeInTheirOrderAndOnce) {
    ServeOptions options;
    options.notifications = 8;
    serve(allow, options);
    EXPECT_EQ(serving->next_notification(milliseconds(0)).error().code, ErrorCode::timed_out);
    const std::vector<std::string> texts{"block 1", "", std::string("\0\xff", 2), std::string(4096, 'x')};
    for (const std::string& text : texts) {
        const auto told = here->notify("n", text);
        ASSERT_TRUE(told) << told.error().to_string();
    }
    for (const std::string& text : texts) {
        const auto next = serving->next_notification(milliseconds(0));
        ASSERT_TRUE(next) << next.error().to_string();
        EXPECT_EQ(next->text, text);
        EXPECT_TRUE(next->from.starts_with("127.0.0.1:")) << next->from;
    }
    EXPECT_FALSE(serving->next_notification(milliseconds(20)));
}

TEST_F(Notify, WhoWaitsFindsTheBytesOfTheCopyBefore) {
    ServeOptions options;
    options.notifications = 1;
    serve(allow, options);
    const std::string text = test::text_of(3 << 20, 3);
    std::thread sender([&] {
        std::this_thread::sleep_for(milliseconds(50));
        const Buffer file = Buffer::file(path("out/block")).on("n");
        ASSERT_TRUE(here->copy(Buffer::host(text.data(), text.size()), file).wait());
        ASSERT_TRUE(here->notify("n", "out/block"));
    });
    const auto next = serving->next_notification(std::chrono::seconds(60));
    ASSERT_TRUE(next) << next.error().to_string();
    EXPECT_TRUE(test::get(path(next->text)) == text);
    sender.join();
}

TEST_F(Notify, WhatIsRefusedSaysWhy) {
    EXPECT_EQ(here->notify("n", "nobody takes it").error().code, ErrorCode::unsupported);
    ServeOptions options;
    options.notifications = 2;
    serve(allow, options);
    *here = client().value();  // the one before may not know yet that its node has ended
    EXPECT_EQ(here->notify("n", std::string(4097, 'x')).error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(here->notify("no name", "x").error().code, ErrorCode::invalid_argument);
    ASSERT_TRUE(here->notify("n", "1"));
    ASSERT_TRUE(here->notify("n", "2"));
    EXPECT_EQ(here->notify("n", "3").error().code, ErrorCode::out_of_memory);
    ASSERT_TRUE(serving->next_notification(milliseconds(0)));
    EXPECT_TRUE(here->notify("n", "4"));
}

// Asked once more where an answer was lost, told once all the same.
TEST_F(Notify, ALostConnectionMakesNoneOfThemTwo) {
    ServeOptions options;
    options.notifications = 10'000;
    serve(allow, options);
    Proxy way(port());
    const Context client = through(way, false);
    ASSERT_TRUE(client.notify("n", "0"));
    std::atomic<bool> over{false};
    std::thread cutter([&] {
        for (int i = 0; i < 8 && !over; ++i) {
            std::this_thread::sleep_for(milliseconds(60));
            way.cut();
        }
        over = true;
    });
    int told = 1;
    for (; !over || told < 100; ++told) {
        const auto done = client.notify("n", std::to_string(told));
        ASSERT_TRUE(done) << told << ": " << done.error().to_string();
    }
    cutter.join();
    for (int i = 0; i < told; ++i) {
        const auto next = serving->next_notification(milliseconds(0));
        ASSERT_TRUE(next) << i;
        EXPECT_EQ(next->text, std::to_string(i));
    }
    EXPECT_FALSE(serving->next_notification(milliseconds(0)));
}

// One byte of the first data connection changes on its way.
TEST_F(Notify, BytesThatChangeAreSentAgainWhereTheyCarryChecksums) {
    const std::string text = test::text_of(24 << 20, 4);
    for (const bool checksums : {false, true}) {
        Proxy way(port());
        const Context client = through(way, checksums);
        const auto memory = client.allocate(Place::host().on("n"), text.size());
        ASSERT_TRUE(memory) << memory.error().to_string();
        way.damage(2, 1'000'000);
        const auto there = client.copy(Buffer::host(text.data(), text.size()), memory->buffer()).wait();
        ASSERT_TRUE(there) << checksums << there.error().to_string();
        std::string back(text.size(), '\0');
        ASSERT_TRUE(client.copy(memory->buffer(), Buffer::host(back.data(), back.size())).wait());
        EXPECT_EQ(back == text, checksums);
        std::string notes;
        for (const std::string& note : there->notes) notes += note + "\n";
        EXPECT_EQ(notes.find("the connection to n was lost") != std::string::npos, checksums) << notes;
    }
}

TEST_F(Notify, ClientsTogetherMoveNoMoreThanTheRate) {
    constexpr Bytes rate = Bytes{64} << 20, all = Bytes{24} << 20;
    ServeOptions options;
    options.rate = rate;
    serve(allow, options);
    const std::string text = test::text_of(all, 6);
    for (const char* place : {"n/host", "n/gpu:1"}) {
        const auto memory = here->allocate(*Place::parse(place), all);
        ASSERT_TRUE(memory) << memory.error().to_string();
        std::string back(all, '\0');
        const auto begin = std::chrono::steady_clock::now();
        const auto there = here->copy(Buffer::host(text.data(), all), memory->buffer()).wait();
        ASSERT_TRUE(there) << there.error().to_string();
        const auto middle = std::chrono::steady_clock::now();
        const auto again = here->copy(memory->buffer(), Buffer::host(back.data(), all)).wait();
        ASSERT_TRUE(again) << again.error().to_string();
        const auto end = std::chrono::steady_clock::now();
        EXPECT_TRUE(back == text);
        // 24 MiB at 64 MiB/s, less what goes at once after a pause.
        EXPECT_GT(middle - begin, milliseconds(300)) << place;
        EXPECT_GT(end - middle, milliseconds(300)) << place;
    }
}

}  // namespace
}  // namespace sidestep
