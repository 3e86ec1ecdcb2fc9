// Requests with many parts: all arrive where they belong, over links that end too, and are told of once.
#include <atomic>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "tests/network/session_rig.hpp"
#include "wire/session.hpp"

namespace sidestep::wire {
namespace {

using test::Alone;
using test::BothEnds;
using test::Came;
using test::comes;
using test::Frame;
using test::Guarded;
using test::mib;

// How often somebody was told, and of how many errors.
struct Heard {
    Session::Told told() {
        return [this](const Result<void>& result) {
            errors += !result;
            ++times;
        };
    }
    bool once() const {
        return comes([this] { return times > 0; }) && times == 1;
    }
    std::atomic<int> errors{0};
    std::atomic<int> times{0};
};

// Pieces of all sizes that lie in one order here and in another one there.
struct Scattered {
    explicit Scattered(std::uint64_t seed) {
        for (std::size_t i = 0; i < 1200; ++i) sizes.push_back(i * 7919 % 3000);
        for (const Bytes size : {mib, mib + 1, 3 * mib + 5, Bytes{0}, Bytes{1}, Bytes{256} << 10})
            sizes.push_back(size);
        std::shuffle(sizes.begin(), sizes.end(), std::minstd_rand(static_cast<unsigned>(seed)));
        all = std::accumulate(sizes.begin(), sizes.end(), Bytes{0});
    }
    // Those of `memory`, and in the regions: the last is first there; every third lies in the second region.
    std::vector<Part> parts(Guarded& memory, std::uint64_t first, std::uint64_t second) const {
        std::vector<Part> parts;
        Bytes here = 0;
        for (std::size_t i = 0; i < sizes.size(); here += sizes[i++])
            parts.push_back(
                {i % 3 == 0 ? second : first, all - here - sizes[i], sizes[i], memory.data() + here});
        return parts;
    }
    // What of `here` the region holds where `in_second` says which.
    void expect(Guarded& here, Guarded& first, Guarded& second) const {
        Bytes at = 0;
        for (std::size_t i = 0; i < sizes.size(); at += sizes[i++]) {
            const auto& there = i % 3 == 0 ? second : first;
            ASSERT_EQ(std::memcmp(const_cast<Guarded&>(there).data() + (all - at - sizes[i]),
                                  here.data() + at, sizes[i]),
                      0)
                << i;
        }
    }
    std::vector<Bytes> sizes;
    Bytes all = 0;
};

TEST(SessionParts, GoWhereTheyBelong) {
    const Scattered pieces(1);
    for (const std::size_t sockets : {1, 4}) {
        Guarded source(pieces.all, 1), target(pieces.all, 2), first(pieces.all, 3), second(pieces.all, 4);
        BothEnds peers(sockets);
        const auto a = peers.other->grant(test::region_of(first));
        const auto b = peers.other->grant(test::region_of(second));
        Heard pushed, pulled;
        peers.one->bring(pieces.parts(source, a, b), pushed.told());
        ASSERT_TRUE(pushed.once());
        EXPECT_EQ(pushed.errors, 0);
        pieces.expect(source, first, second);
        peers.one->fetch(pieces.parts(target, a, b), pulled.told());
        ASSERT_TRUE(pulled.once());
        EXPECT_EQ(pulled.errors, 0);
        EXPECT_TRUE(target.text() == source.text());
        EXPECT_TRUE(source.whole() && target.whole() && first.whole() && second.whole());
        EXPECT_FALSE(peers.one->waits());
    }
}

// Both ways at a time, and the links end while they go.
TEST(SessionParts, OutliveTheirLinks) {
    const Scattered pieces(2);
    std::minstd_rand random(5);
    BothEnds peers(3);
    for (const auto& session : {peers.one, peers.other}) session->outlive_links([](const Error&) {});
    for (int round = 0; round < 15; ++round) {
        Guarded source(pieces.all, 1), target(pieces.all, 2), first(pieces.all, 3), second(pieces.all, 4);
        Guarded readable(pieces.all, 5);
        const std::vector<std::uint64_t> regions{peers.other->grant(test::region_of(first)),
                                                 peers.other->grant(test::region_of(second)),
                                                 peers.other->grant(test::region_of(readable))};
        Heard pushed, pulled;
        std::thread mover([&] {
            peers.one->bring(pieces.parts(source, regions[0], regions[1]), pushed.told());
            peers.one->fetch(pieces.parts(target, regions[2], regions[2]), pulled.told());
        });
        for (int times = 0; times < 4; ++times) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
            for (const auto& session : {peers.one, peers.other})
                session->link()->end(test::some_error(ErrorCode::timed_out));
            for (const auto& session : {peers.one, peers.other})
                EXPECT_TRUE(session->settle(test::patience()));
            peers.renew(3);
            EXPECT_TRUE(peers.other->replay().ok());
            EXPECT_TRUE(peers.one->replay().ok());
        }
        mover.join();
        ASSERT_TRUE(pushed.once() && pulled.once());
        EXPECT_EQ(pushed.errors + pulled.errors, 0);
        pieces.expect(source, first, second);
        pieces.expect(target, readable, readable);
        EXPECT_TRUE(target.whole() && first.whole() && second.whole());
        for (const std::uint64_t region : regions) peers.other->withdraw(region);
    }
}

TEST(SessionParts, FailAsOne) {
    Guarded source(1000, 1), there(1000, 2);
    BothEnds peers(2);
    const auto region = peers.other->grant(test::region_of(there));
    for (const bool push : {true, false}) {
        std::vector<Part> parts;
        for (Bytes i = 0; i < 10; ++i)
            parts.push_back({i == 7 ? region + 99 : region, i, 1, source.data() + i});
        Heard heard;
        push ? peers.one->bring(parts, heard.told()) : peers.one->fetch(parts, heard.told());
        ASSERT_TRUE(heard.once());
        EXPECT_EQ(heard.errors, 1);
    }
    Heard nothing;
    peers.one->fetch({{region, 0, 0, source.data()}}, nothing.told());
    peers.one->bring({{region, 0, 0, source.data()}}, nothing.told());
    EXPECT_EQ(nothing.times * 10 + nothing.errors, 20) << "there is nothing to wait for";
    EXPECT_FALSE(peers.one->waits());
}

// What has come together is confirmed together.
TEST(SessionParts, AreConfirmedInOneFrame) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    Guarded memory(1000, 1);
    Alone alone;
    const auto region = alone.session->grant(test::region_of(memory, false, true));
    std::string said;
    // The parts of two requests, of which the second lacks one.
    for (Bytes i = 0; i < 20; ++i)
        for (const std::uint64_t request : {1, 2})
            if (request == 1 || i != 10)
                said += test::said({Frame::Kind::push, request, region, 900 - 10 * i, 3, 0, 0, 3 * i}, "abc");
    ASSERT_TRUE(alone.says(said));
    std::vector<Frame> heard;
    for (int i = 0; i < 3; ++i) heard.push_back(alone.hears().frame);
    std::sort(heard.begin(), heard.end(), [](const Frame& a, const Frame& b) {
        return std::pair(a.request, a.offset) < std::pair(b.request, b.offset);
    });
    EXPECT_EQ(heard[0], (Frame{Frame::Kind::confirm, 1, 0, 0, 60}));
    EXPECT_EQ(heard[1], (Frame{Frame::Kind::confirm, 2, 0, 0, 30}));
    EXPECT_EQ(heard[2], (Frame{Frame::Kind::confirm, 2, 0, 33, 27}));
}

// The other end hangs up on whoever asks for too much at a time: what is beyond waits until something has come.
TEST(SessionParts, NoMoreIsAskedForThanTheOtherEndBears) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    constexpr std::size_t many = 40'000;
    Guarded memory(many, 1);
    Alone alone;
    std::vector<Part> parts;
    for (std::size_t i = 0; i < many; ++i) parts.push_back({7, i, 1, memory.data() + i});
    Heard first, second;
    std::thread asking([&] {
        alone.session->fetch(parts, first.told());
        alone.session->fetch(parts, second.told());
    });
    const std::uint64_t request = alone.hears().frame.request;
    for (std::size_t i = 1; i < many; ++i) ASSERT_EQ(alone.hears().frame.request, request);
    asking.join();
    // What nobody has been asked for is no answer.
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::fault, request, 0, many, 3}, "\x02no")));
    ASSERT_TRUE(first.once());
    const Came next = alone.hears();
    EXPECT_EQ(next.frame.request, request + 1);
    EXPECT_EQ(next.frame.offset, 0u);
    for (std::size_t i = 1; i < many; ++i) alone.hears();
    ASSERT_TRUE(alone.says(test::said({Frame::Kind::fault, request + 1, 0, many, 3}, "\x02no")));
    ASSERT_TRUE(second.once());
    EXPECT_FALSE(alone.session->end().has_value());
}

// A question that was not asked is not answered either.
TEST(SessionParts, WhatWaitsToBeAskedForIsNotAnswered) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    constexpr std::size_t many = 40'000;
    for (const auto kind : {Frame::Kind::push, Frame::Kind::fault}) {
        Guarded memory(many, 1);
        Heard heard;
        Alone alone;
        const std::vector<Part> parts(many, {7, 0, 1, memory.data()});
        alone.session->fetch(parts, heard.told());
        alone.session->fetch(parts, heard.told());
        const std::uint64_t request = alone.hears().frame.request;
        ASSERT_TRUE(alone.says(test::said({kind, request + 1, 0, 0, 1}, "\x02")));
        ASSERT_TRUE(alone.has_ended());
        EXPECT_TRUE(comes([&] { return heard.times == 2; }));
        EXPECT_EQ(heard.errors, 2);
    }
}

}  // namespace
}  // namespace sidestep::wire
