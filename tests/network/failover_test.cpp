// Connections that are lost midway: what was under way goes on over another, whole, and the receipt says so.
#include <chrono>
#include <thread>

#include "tests/network/nodes.hpp"
#include "tests/network/proxy.hpp"
#include "tests/slower.hpp"

namespace sidestep {
namespace {

using Clock = std::chrono::steady_clock;
using test::Proxy;

constexpr Bytes size = slower_by > 1 ? 24_MiB : 96_MiB;

class Failover : public test::Nodes {
protected:
    // A client that knows the node by these ways.
    void connect(std::initializer_list<const Proxy*> ways) {
        ContextOptions options{"dgx-h100"};
        for (const Proxy* way : ways)
            options.nodes += (options.nodes.empty() ? "n=" : ",n=") + way->address();
        options.key_file = path("key");
        auto opened = Context::open(std::move(options));
        ASSERT_TRUE(opened) << opened.error().to_string();
        *here = std::move(*opened);
    }

    // Cuts the connections while the copy is under way, so many times, and waits for its end.
    static Result<Receipt> copy_and_cut(Transfer copy, Proxy& way, int times) {
        for (int time = 0; time < times; ++time) {
            const Bytes before = copy.bytes_done();
            while (!copy.poll() && copy.bytes_done() < before + (size >> 5)) std::this_thread::yield();
            way.cut();
        }
        return copy.wait();
    }

    static bool tells_of_loss(const Receipt& receipt) {
        for (const std::string& note : receipt.notes)
            if (note.find("the connection to n was lost") != std::string::npos) return true;
        return false;
    }

    Proxy first{port()};
    const std::string text = test::text_of(size, 5);
    const Buffer source = Buffer::host(text.data(), text.size());
};

TEST_F(Failover, CopiesGoOnWithoutAWrongByte) {
    connect({&first});
    int told = 0;
    std::string back;
    for (const char* place : {"n/host", "n/gpu:1"}) {
        const auto memory = here->allocate(*Place::parse(place), size);
        ASSERT_TRUE(memory) << memory.error().to_string();
        for (const int times : {1, 4}) {
            back.assign(size, '\0');
            const auto there = copy_and_cut(here->copy(source, memory->buffer()), first, times);
            ASSERT_TRUE(there) << place << ": " << there.error().to_string();
            const auto again =
                copy_and_cut(here->copy(memory->buffer(), Buffer::host(back.data(), size)), first, times);
            ASSERT_TRUE(again) << place << ": " << again.error().to_string();
            EXPECT_TRUE(back == text) << place;
            told += tells_of_loss(*there) + tells_of_loss(*again);
        }
    }
    EXPECT_GT(told, 0) << "not one of eight copies was cut midway";
}

TEST_F(Failover, FilesToo) {
    connect({&first});
    const Buffer file = Buffer::file(path("out/file")).on("n");
    const auto there = copy_and_cut(here->copy(source, file), first, 3);
    ASSERT_TRUE(there) << there.error().to_string();
    EXPECT_TRUE(test::get(path("out/file")) == text);
    std::string back(size, '\0');
    const auto again = copy_and_cut(here->copy(file, Buffer::host(back.data(), size)), first, 3);
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_TRUE(back == text);
}

TEST_F(Failover, ManyCopiesAndQuestionsAtATime) {
    connect({&first});
    ASSERT_TRUE(here->allocate(Place::host().on("n"), 4096));
    std::atomic<bool> over{false};
    std::thread cutter([&] {
        for (int i = 0; i < 20 && !over; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(70));
            first.cut();
        }
    });
    constexpr Bytes part = Bytes{4} << 20;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread)
        threads.emplace_back([&, thread] {
            std::string back;
            for (int round = 0; round < 12; ++round) {
                const auto memory = here->allocate(Place::gpu(thread).on("n"), part);
                ASSERT_TRUE(memory) << memory.error().to_string();
                const char* from =
                    text.data() + static_cast<Bytes>(thread) * part + static_cast<Bytes>(round);
                back.assign(part, '\0');
                const auto there = here->copy(Buffer::host(from, part), memory->buffer()).wait();
                ASSERT_TRUE(there) << there.error().to_string();
                const auto again = here->copy(memory->buffer(), Buffer::host(back.data(), part)).wait();
                ASSERT_TRUE(again) << again.error().to_string();
                EXPECT_EQ(back.compare(0, part, from, part), 0);
            }
        });
    for (auto& thread : threads) thread.join();
    over = true;
    cutter.join();
    // The last cut may have come last.
    const auto until = Clock::now() + std::chrono::seconds(10);
    while (serving->counts().clients != 1 && Clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(serving->counts().clients, 1u);
}

TEST_F(Failover, AFirstConnectionThatIsCutIsMadeAgain) {
    connect({&first});
    first.stall(true);
    std::thread cutter([&] {
        for (const auto until = Clock::now() + std::chrono::seconds(20);
             first.connections() < 1 && Clock::now() < until;)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        first.cut();
        first.stall(false);
    });
    const auto memory = here->allocate(Place::host().on("n"), 4096);
    cutter.join();
    EXPECT_TRUE(memory) << memory.error().to_string();
    EXPECT_EQ(first.connections(), 2);
}

// The connection stays, and nothing comes through.
TEST_F(Failover, AWayThatIsSilentIsLeftForAnother) {
    Proxy second{port()};
    connect({&first, &second});
    const auto memory = here->allocate(Place::gpu(0).on("n"), size);
    ASSERT_TRUE(memory) << memory.error().to_string();
    for (int turn = 0; turn < 2; ++turn) {
        Proxy& down = turn == 0 ? first : second;
        const auto passed = [&] { return first.bytes_passed() + second.bytes_passed(); };
        const std::size_t at_first = passed();
        auto copy = here->copy(source, memory->buffer());
        while (!copy.poll() && copy.bytes_done() < size / 8) std::this_thread::yield();
        down.stall(true);
        const std::size_t before = passed() - at_first;
        const auto done = copy.wait();
        ASSERT_TRUE(done) << done.error().to_string();
        if (before < size / 2) {
            EXPECT_TRUE(tells_of_loss(*done));
        }
        EXPECT_TRUE(holds(memory->buffer(), text));
        down.stall(false);
    }
}

TEST_F(Failover, AnotherWayIsTakenFromTheBeginning) {
    Proxy second{port()};
    first.refuse();
    connect({&first, &second});
    EXPECT_TRUE(here->allocate(Place::gpu(0).on("n"), 4096));
    EXPECT_GT(second.connections(), 0);
}

TEST_F(Failover, EndsWhereNoWayIsLeft) {
    connect({&first});
    const auto memory = here->allocate(Place::host().on("n"), size);
    ASSERT_TRUE(memory) << memory.error().to_string();
    auto copy = here->copy(source, memory->buffer());
    first.refuse();
    first.cut();
    const auto begin = Clock::now();
    const auto done = copy.wait();
    if (!done) {
        EXPECT_EQ(done.error().code, ErrorCode::io_error) << done.error().to_string();
    }
    EXPECT_FALSE(here->allocate(Place::host().on("n"), 4096));
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(8));
}

// A deadline holds while the connection is being renewed, and the Context can go.
TEST_F(Failover, ADeadlineHoldsMeanwhile) {
    connect({&first});
    const auto memory = here->allocate(Place::host().on("n"), size);
    ASSERT_TRUE(memory) << memory.error().to_string();
    first.stall(true);
    CopyOptions options;
    options.deadline = std::chrono::milliseconds(300);
    const auto begin = Clock::now();
    const auto done = here->copy(source, memory->buffer(), options).wait();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::timed_out) << done.error().to_string();
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4)) << "far less than a connection is waited for";
    here = std::make_unique<Context>(*client());
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(40));
    first.stall(false);
}

// More than are told at a time.
TEST_F(Failover, WhatIsGivenBackMeanwhileIsGivenBackOverTheNextConnection) {
    connect({&first});
    constexpr Bytes all = Bytes{200} << 20, parts = 400;
    std::vector<Allocation> held;
    for (Bytes i = 0; i < parts; ++i) {
        auto part = here->allocate(Place::host().on("n"), all / parts);
        ASSERT_TRUE(part) << part.error().to_string();
        held.push_back(std::move(*part));
    }
    ASSERT_FALSE(here->allocate(Place::host().on("n"), all));
    first.stall(true);
    held.clear();
    first.cut();
    first.stall(false);
    Result<Allocation> again = here->allocate(Place::host().on("n"), all);
    for (const auto until = Clock::now() + std::chrono::seconds(30); !again && Clock::now() < until;)
        again = here->allocate(Place::host().on("n"), all);
    EXPECT_TRUE(again) << again.error().to_string();
}

// What a client had is kept for a while only.
TEST_F(Failover, WhatALostClientHadIsGivenBack) {
    connect({&first});
    auto memory = here->allocate(Place::host().on("n"), Bytes{200} << 20);
    ASSERT_TRUE(memory) << memory.error().to_string();
    auto other = client();
    ASSERT_TRUE(other);
    ASSERT_FALSE(other->allocate(Place::host().on("n"), Bytes{100} << 20));
    first.refuse();
    first.cut();
    const auto until = Clock::now() + std::chrono::seconds(30);
    while (!other->allocate(Place::host().on("n"), Bytes{100} << 20) && Clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(other->allocate(Place::host().on("n"), Bytes{100} << 20));
}

}  // namespace
}  // namespace sidestep
