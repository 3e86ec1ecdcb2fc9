// When pieces that have come into slots are moved on.
#include "wire/slots.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include "backends/host/host_backend.hpp"
#include "transfer/engine.hpp"

namespace sidestep::wire {
namespace {

using Direction = Slots::Slot::Direction;

// Into memory of this machine, which a processor copies to at once.
class SlotsLater : public testing::Test {
protected:
    SlotsLater() {
        registry.add(backends::host::create({}), topology);
        engine = std::make_unique<transfer::Engine>(topology, registry);
        make(std::chrono::hours(1));
    }
    void make(std::chrono::microseconds longest_wait) {
        pieces = std::make_shared<Pieces>(engine->machine().lookout);
        slots = Slots::create(engine->machine().pool, pieces, Place::host(), MemoryKind::pinned, longest_wait)
                    .value();
        const Buffer end = Buffer::memory(Place::host(), memory.data(), memory.size());
        backend::Backend* const host = registry.find("host");
        way =
            Way{host, 0, host->attach(end, {}).value(), slots->attach(*host, backend::Access::read).value()};
    }

    // A byte for the place of its own number.
    std::shared_ptr<Slots::Slot> fill(char byte) {
        auto slot = slots->take();
        EXPECT_NE(slot, nullptr);
        if (slot) std::memset(slot->address(), byte, 1);
        return slot;
    }
    void move(std::shared_ptr<Slots::Slot> slot, Bytes to, Direction direction = Direction::in_later) {
        Slots::Slot& one = *slot;
        one.move(std::move(slot), way, direction, {{to, 1}}, [this](const auto&, const Result<void>& result) {
            EXPECT_TRUE(result);
            ++moved;
        });
    }

    Topology topology = Topology::open("dgx-h100").value();
    backend::Registry registry;
    std::string memory = std::string(Slots::count, '.');
    std::unique_ptr<transfer::Engine> engine;
    std::shared_ptr<Pieces> pieces;
    std::shared_ptr<Slots> slots;
    Way way;
    std::atomic<int> moved{0};
};

TEST_F(SlotsLater, NoMoreWaitThanAreBeingFilled) {
    std::vector<std::shared_ptr<Slots::Slot>> filled;
    for (const char byte : {'a', 'b', 'c', 'd'}) filled.push_back(fill(byte));
    move(std::move(filled[0]), 0);
    EXPECT_EQ(memory.substr(0, 4), "....");
    move(std::move(filled[1]), 1);
    EXPECT_EQ(memory.substr(0, 4), "....") << "two wait, and two are being filled";
    move(std::move(filled[2]), 2);
    EXPECT_EQ(memory.substr(0, 4), "ab..") << "one may wait";
    move(std::move(filled[3]), 3);
    EXPECT_EQ(memory.substr(0, 4), "abcd") << "nothing comes any more";
    filled.clear();
    EXPECT_TRUE(slots->idle());
}

TEST_F(SlotsLater, WhatIsMovedAtOnceDoesNotWaitForThem) {
    auto first = fill('a'), second = fill('b'), third = fill('c');
    move(std::move(first), 0);
    move(std::move(second), 1, Direction::in);
    EXPECT_EQ(memory.substr(0, 3), ".b.");
    move(std::move(third), 2, Direction::in);
    EXPECT_EQ(memory.substr(0, 3), "abc");
}

TEST_F(SlotsLater, NoneWaitsForLong) {
    make(std::chrono::microseconds(0));
    auto first = fill('a'), second = fill('b');
    move(std::move(first), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    slots->move_those_due();
    EXPECT_EQ(memory.substr(0, 2), "a.");
    second.reset();
}

// What comes into the other slot is stuck, and nothing else comes.
TEST_F(SlotsLater, TheThreadThatDrivesMovesThemInTime) {
    make(Slots::longest_wait);
    pieces->tell([this] { slots->move_those_due(); });
    engine->drive_in_background(pieces);
    for (int round = 1; round <= 3; ++round) {
        auto first = fill('a');
        const auto stuck = fill('b');
        move(std::move(first), 0);
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (moved < round && std::chrono::steady_clock::now() < until) std::this_thread::yield();
        EXPECT_EQ(moved, round);
    }
    pieces->stop();
    EXPECT_EQ(memory.substr(0, 2), "a.");
}

// What it keeps may be the last but one to hold the slots: who waits for all of them then destroys them on a thread of its own.
TEST_F(SlotsLater, WhatIsToldOfTheEndGoesBeforeTheSlotIsBack) {
    std::optional<bool> idle;
    const auto look = [&](const void*) { idle = slots->idle(); };
    auto slot = fill('a');
    Slots::Slot& one = *slot;
    one.move(std::move(slot), way, Direction::in, {{0, 1}},
             [kept = std::shared_ptr<const void>(this, look)](const auto&, const Result<void>&) {});
    EXPECT_EQ(idle, false);
    EXPECT_TRUE(slots->idle());
}

// Eight at most, whatever is being filled.
TEST_F(SlotsLater, AFewWait) {
    std::vector<std::shared_ptr<Slots::Slot>> filled;
    for (std::size_t i = 0; i < Slots::count; ++i) filled.push_back(fill(static_cast<char>('a' + i)));
    for (std::size_t i = 0; i < 10; ++i) move(std::move(filled[i]), i);
    EXPECT_EQ(memory.substr(0, 10), "ab........");
    filled.clear();
    slots->move_those_due();
    EXPECT_EQ(memory.substr(0, 10), "abcdefghij");
}

// Their link was lost: nothing comes into them.
TEST_F(SlotsLater, SlotsThatAreGivenBackUnfilledHoldUpNothing) {
    auto first = fill('a'), second = fill('b');
    move(std::move(first), 0);
    second.reset();
    EXPECT_EQ(memory.substr(0, 2), "..") << "who gives back may hold any lock";
    slots->move_those_due();
    EXPECT_EQ(memory.substr(0, 2), "a.");
    EXPECT_TRUE(slots->idle());
}

}  // namespace
}  // namespace sidestep::wire
