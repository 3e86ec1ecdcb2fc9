// Two sessions and their memory: what is pushed and pulled arrives where it belongs, and every flight ends once.
#include "wire/session.hpp"

#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "tests/network/session_rig.hpp"

namespace sidestep::wire {
namespace {

using test::BothEnds;
using test::Guarded;
using test::mib;
using test::Moving;

struct Range {
    Bytes offset;
    Bytes size;
};

std::vector<Range> ranges_of(Bytes all) {
    return {{0, 1},   {0, all},     {1, all - 1}, {all - 1, 1}, {mib - 1, 2},      {mib, mib},
            {7, mib}, {7, mib + 1}, {0, 40},      {3, 16384},   {mib - 5, 2 * mib}};
}

TEST(Session, PushesGoWhereTheyBelong) {
    for (const std::size_t sockets : {1, 3}) {
        Guarded memory(3 * mib + 5, 1), source(3 * mib + 5, 2);
        BothEnds peers(sockets);
        const std::uint64_t region = peers.other->grant(test::region_of(memory, false, true));
        std::string expected = memory.text();
        Bytes moved = 0;
        for (const auto& [offset, size] : ranges_of(memory.size())) {
            Moving moving;
            const Bytes from = (offset * 31) % (source.size() - size + 1);
            ASSERT_TRUE(test::begun(
                moving, peers.one->push(source.data() + from, region, offset, size, moving.flight)));
            ASSERT_TRUE(moving.over()) << offset << " " << size;
            EXPECT_EQ(moving.code(), 0) << moving.flight.result().error().to_string();
            expected.replace(offset, size, source.text(), from, size);
            EXPECT_TRUE(memory.text() == expected) << offset << " " << size;
            moved += size;
        }
        EXPECT_TRUE(memory.whole());
        EXPECT_EQ(peers.one->sent(), moved);
        EXPECT_EQ(peers.other->received(), moved);
        EXPECT_FALSE(peers.one->waits());
    }
}

TEST(Session, PullsGoWhereTheyBelong) {
    for (const std::size_t sockets : {1, 3}) {
        Guarded memory(3 * mib + 5, 1);
        BothEnds peers(sockets);
        const std::uint64_t region = peers.other->grant(test::region_of(memory, true, false));
        Bytes moved = 0;
        for (const auto& [offset, size] : ranges_of(memory.size())) {
            Guarded target(size, 3);
            Moving moving;
            ASSERT_TRUE(peers.one->pull(region, offset, size, target.data(), moving.flight).ok());
            ASSERT_TRUE(moving.over()) << offset << " " << size;
            EXPECT_EQ(moving.code(), 0) << moving.flight.result().error().to_string();
            EXPECT_TRUE(target.text() == memory.text().substr(offset, size)) << offset << " " << size;
            EXPECT_TRUE(target.whole());
            moved += size;
        }
        EXPECT_EQ(peers.other->sent(), moved);
        EXPECT_EQ(peers.one->received(), moved);
        EXPECT_FALSE(peers.one->waits());
    }
}

// Each thread pushes its own part of the other end's memory, and pulls what it has pushed.
TEST(Session, ManyAtOnce) {
    constexpr std::size_t threads = 8, each = 60;
    constexpr Bytes share = 512 << 10;
    Guarded memory(threads * share), source(threads * share, 9);
    BothEnds peers(3);
    const std::uint64_t region = peers.other->grant(test::region_of(memory));
    const auto work = [&](std::size_t thread) {
        const Bytes begin = thread * share;
        std::deque<Moving> pushes(each), pulls(each);
        std::vector<Range> parts;
        for (std::size_t i = 0; i < each; ++i) parts.push_back({begin + i * (share / each), share / each});
        for (std::size_t i = 0; i < each; ++i)
            ASSERT_TRUE(
                test::begun(pushes[i], peers.one->push(source.data() + parts[i].offset, region,
                                                       parts[i].offset, parts[i].size, pushes[i].flight)));
        for (auto& one : pushes) ASSERT_TRUE(one.over());
        Guarded target(share);
        for (std::size_t i = 0; i < each; ++i)
            ASSERT_TRUE(peers.one
                            ->pull(region, parts[i].offset, parts[i].size,
                                   target.data() + (parts[i].offset - begin), pulls[i].flight)
                            .ok());
        for (auto& one : pulls) ASSERT_TRUE(one.over());
        const Bytes all = share / each * each;
        EXPECT_TRUE(target.text().substr(0, all) == source.text().substr(begin, all));
        for (auto& one : pushes) EXPECT_EQ(one.ends * 100 + one.code(), 100);
        for (auto& one : pulls) EXPECT_EQ(one.ends * 100 + one.code(), 100);
    };
    std::vector<std::thread> running;
    for (std::size_t thread = 0; thread < threads; ++thread) running.emplace_back(work, thread);
    for (auto& one : running) one.join();
    EXPECT_TRUE(memory.whole());
    EXPECT_FALSE(peers.one->waits());
}

TEST(Session, WhatIsNotGrantedFailsAndNothingElse) {
    Guarded memory(3 * mib), source(5 * mib, 2);
    BothEnds peers(2);
    const std::uint64_t readable = peers.other->grant(test::region_of(memory, true, false));
    const std::uint64_t writable = peers.other->grant(test::region_of(memory, false, true));
    const std::uint64_t gone = peers.other->grant(test::region_of(memory));
    peers.other->withdraw(gone);
    peers.other->withdraw(gone);
    peers.other->withdraw(12345);
    struct Case {
        bool push;
        std::uint64_t region;
        Range range;
        ErrorCode code;
    };
    const std::vector<Case> cases = {
        {true, 99, {0, 1}, ErrorCode::not_found},
        {true, gone, {0, 3 * mib}, ErrorCode::not_found},
        {true, readable, {0, 3 * mib}, ErrorCode::permission_denied},
        {true, writable, {3 * mib, 1}, ErrorCode::invalid_argument},
        {true, writable, {3 * mib + 1, 3 * mib}, ErrorCode::invalid_argument},
        {true, writable, {1ull << 60, 3 * mib}, ErrorCode::invalid_argument},
        {false, 99, {0, 1}, ErrorCode::not_found},
        {false, 0, {0, 1}, ErrorCode::not_found},
        {false, gone, {0, 3 * mib}, ErrorCode::not_found},
        {false, writable, {0, 3 * mib}, ErrorCode::permission_denied},
        {false, readable, {0, 3 * mib + 1}, ErrorCode::invalid_argument},
        {false, readable, {3 * mib, 1}, ErrorCode::invalid_argument},
        {false, readable, {1ull << 60, 5}, ErrorCode::invalid_argument},
    };
    const std::string before = memory.text();
    for (const auto& [push, region, range, code] : cases) {
        Guarded target(5 * mib, 4);
        Moving moving;
        if (push) {
            const auto answer =
                peers.one->push(source.data(), region, range.offset, range.size, moving.flight);
            // The refusal may be there before the call returns.
            if (!test::begun(moving, answer)) moving.flight.end(answer.error());
        } else {
            ASSERT_TRUE(peers.one->pull(region, range.offset, range.size, target.data(), moving.flight).ok());
        }
        ASSERT_TRUE(moving.over()) << region;
        EXPECT_EQ(moving.code(), static_cast<int>(code)) << push << " " << region << " " << range.offset;
        EXPECT_NE(moving.flight.result().error().message.find("the other says"), std::string::npos)
            << moving.flight.result().error().message;
        EXPECT_TRUE(target.text() == Guarded(5 * mib, 4).text());
        EXPECT_EQ(moving.ends, 1);
    }
    EXPECT_TRUE(memory.text() == before);
    EXPECT_TRUE(memory.whole());
    EXPECT_FALSE(peers.one->end().has_value()) << "the session goes on";
    Moving moving;
    ASSERT_TRUE(test::begun(moving, peers.one->push(source.data(), writable, 0, 3 * mib, moving.flight)));
    ASSERT_TRUE(moving.over());
    EXPECT_EQ(moving.code(), 0);
}

// A push whose end lies outside is refused there; of its parts, those within are written.
TEST(Session, PartsWithinARegionAreNotWrittenPastIt) {
    Guarded memory(mib + 10, 1), source(3 * mib, 2);
    BothEnds peers(1);
    const std::uint64_t region = peers.other->grant(test::region_of(memory));
    Moving moving;
    const auto answer = peers.one->push(source.data(), region, 0, 3 * mib, moving.flight);
    // As above.
    if (!test::begun(moving, answer)) moving.flight.end(answer.error());
    ASSERT_TRUE(moving.over());
    EXPECT_EQ(moving.code(), static_cast<int>(ErrorCode::invalid_argument));
    EXPECT_TRUE(memory.whole());
    EXPECT_EQ(memory.text().substr(mib), Guarded(mib + 10, 1).text().substr(mib));
}

// The memory goes with its last holder: the region while it is granted, then the frames on their way. The address
// sanitizer looks at this one.
TEST(Session, WithdrawnMemoryIsNotTouched) {
    for (int round = 0; round < 12; ++round) {
        Guarded source(2 * mib, 2);
        std::deque<Moving> moving(40);
        std::deque<Guarded> targets;
        BothEnds peers(3);
        auto memory = std::make_shared<Guarded>(2 * mib);
        const std::weak_ptr<Guarded> held = memory;
        auto region = test::region_of(*memory);
        region->keeps = std::exchange(memory, nullptr);
        const std::uint64_t number = peers.other->grant(std::move(region));
        std::thread withdrawer([&] {
            test::comes([&] { return peers.other->received() > mib * static_cast<Bytes>(round); });
            peers.other->withdraw(number);
        });
        for (std::size_t i = 0; i < moving.size(); ++i) {
            if (i % 3 == 2) {
                targets.emplace_back(2 * mib);
                ASSERT_TRUE(
                    peers.one->pull(number, 0, 2 * mib, targets.back().data(), moving[i].flight).ok());
            } else {
                const auto answer = peers.one->push(source.data(), number, 0, 2 * mib, moving[i].flight);
                if (!test::begun(moving[i], answer)) moving[i].flight.end(answer.error());
            }
        }
        for (auto& one : moving) {
            ASSERT_TRUE(one.over());
            if (one.code() != 0) {
                EXPECT_EQ(one.code(), static_cast<int>(ErrorCode::not_found));
            }
        }
        withdrawer.join();
        EXPECT_TRUE(test::comes([&] { return held.expired(); })) << "nobody holds the memory any more";
        for (auto& one : moving) EXPECT_EQ(one.ends, 1);
        for (const Guarded& target : targets) EXPECT_TRUE(target.whole());
    }
}

TEST(Session, FlightsEndWithTheLink) {
    for (const bool here : {false, true}) {
        std::deque<Moving> moving(20);
        Guarded memory(4 * mib);
        test::Alone alone(2);
        for (std::size_t i = 0; i < moving.size(); ++i) {
            if (i % 2 == 0) {
                ASSERT_TRUE(alone.session->push(memory.data(), 1, 0, 4 * mib, moving[i].flight).ok());
            } else {
                ASSERT_TRUE(alone.session->pull(1, 0, 4 * mib, memory.data(), moving[i].flight).ok());
            }
        }
        EXPECT_TRUE(alone.session->waits());
        if (here)
            alone.session->link()->end(test::some_error(ErrorCode::timed_out));
        else
            alone.bare.clear();
        for (auto& one : moving) {
            ASSERT_TRUE(one.over());
            EXPECT_EQ(one.code(), static_cast<int>(here ? ErrorCode::timed_out : ErrorCode::io_error));
            EXPECT_EQ(one.ends, 1);
        }
        ASSERT_TRUE(alone.session->end().has_value());
        EXPECT_FALSE(alone.session->waits());
        Moving late;
        EXPECT_FALSE(alone.session->push(memory.data(), 1, 0, 1, late.flight).ok());
        EXPECT_FALSE(alone.session->pull(1, 0, 1, memory.data(), late.flight).ok());
        EXPECT_EQ(late.ends, 0) << "an error was answered";
    }
}

// Begun while the link goes, a flight either is refused or ends.
TEST(Session, NoFlightIsForgottenBesideTheEnd) {
    for (int round = 0; round < 30; ++round) {
        Guarded memory(100'000), source(100'000, 2);
        std::deque<Moving> moving(400);
        std::vector<std::atomic<int>> begun(moving.size());
        BothEnds peers(2);
        const std::uint64_t region = peers.other->grant(test::region_of(memory));
        std::vector<std::thread> threads;
        for (std::size_t thread = 0; thread < 4; ++thread)
            threads.emplace_back([&, thread] {
                for (std::size_t i = thread; i < moving.size(); i += 4)
                    begun[i] = test::begun(
                        moving[i], peers.one->push(source.data(), region, 0, 1 + i * 100, moving[i].flight));
            });
        if (round % 2 == 0)
            peers.other->link()->close(test::some_error());
        else
            peers.one->link()->end(test::some_error());
        for (auto& thread : threads) thread.join();
        for (std::size_t i = 0; i < moving.size(); ++i) {
            if (begun[i] != 0) {
                ASSERT_TRUE(moving[i].over()) << i;
            }
        }
        peers.one->link()->end(test::some_error());
        for (std::size_t i = 0; i < moving.size(); ++i) EXPECT_EQ(moving[i].ends, begun[i]) << i;
    }
}

// Each that is asked for while the bound holds would be one more to be called each time, for as long as something waits.
TEST(Session, WaitsForItsPaceOnceHoweverOftenItIsAsked) {
    SIDESTEP_NEEDS_BARE_SOCKETS();
    Guarded memory(8192);
    test::Alone alone;
    const auto region = test::region_of(memory);
    region->pace = std::make_shared<Pace>(1, Pace::Clock::now() - std::chrono::seconds(1));
    const std::uint64_t number = alone.session->grant(region);
    const std::string pull =
        test::said({.kind = backend::Frame::Kind::pull, .request = 1, .region = number, .size = 4096});
    ASSERT_TRUE(alone.says(pull));
    EXPECT_EQ(alone.hears().payload, memory.text().substr(0, 4096));
    ASSERT_TRUE(alone.says(pull));
    EXPECT_TRUE(test::comes([&] { return region->pace->wake() == 1; }));
    for (int i = 0; i < 100; ++i) alone.session->go_on_with_slots();
    EXPECT_EQ(region->pace->wake(), 1);
}

}  // namespace
}  // namespace sidestep::wire
