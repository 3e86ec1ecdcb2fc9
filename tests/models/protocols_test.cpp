// Packets, Lamport and pairs between two ranks, several tasks one after the other: nothing old is taken for new, and
// nothing is written over before it was read. The end of a kernel is a fence.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/models/weak_memory.hpp"

namespace sidestep::models {
namespace {

void expect(const char* name, Checker model, bool holds) {
    const auto found = model.counterexample();
    EXPECT_EQ(!found, holds) << name << "\n" << found.value_or("");
    EXPECT_TRUE(!holds || model.ended()) << name;
    if (found) std::printf("%s:\n%s", name, found->c_str());
}

// A half of a packet holds data and flag, and arrives as a whole: one location, whose value is the epoch. Of task e a rank
// sends, and then receives; who sends e has to find what the other took in e - parities.
Checker packets(unsigned parities) {
    constexpr unsigned steps = 3, tasks = 4;  // store, wait, fence
    std::vector<Program> ranks(2);
    for (unsigned me = 0; me < 2; ++me)
        for (unsigned epoch = 1; epoch <= tasks; ++epoch) {
            const unsigned other = 1 - me, parity = epoch % parities;
            const std::size_t behind = epoch > parities ? (epoch - parities) * steps - 1 : 0;
            ranks[me].push_back({Do::store, me * parities + parity, epoch, other, behind});
            ranks[me].push_back({Do::wait, other * parities + parity, epoch});
            ranks[me].push_back({Do::fence});
        }
    return Checker(std::move(ranks), 2 * parities);
}

TEST(PacketsModel, TwoParitiesSuffice) {
    expect("two parities", packets(2), true);
    expect("one parity", packets(1), false);
}

// A word is empty, 0, until the data comes. In task k a rank sends into set k, empties what k - 1 has left in its own lanes,
// and takes what comes. Whoever sends into a set has to find it emptied.
Checker lamport(unsigned sets) {
    constexpr unsigned steps = 4, tasks = 5;  // store, empty, take, fence
    std::vector<Program> ranks(2);
    for (unsigned me = 0; me < 2; ++me)
        for (unsigned task = 1; task <= tasks; ++task) {
            const unsigned other = 1 - me;
            // The set of task - sets is emptied by the second step of the task after it.
            const std::size_t behind = task > sets ? (task - sets) * steps + 2 : 0;
            ranks[me].push_back({Do::store, me * sets + task % sets, task, other, behind});
            ranks[me].push_back({Do::store, other * sets + (task + sets - 1) % sets, 0});
            ranks[me].push_back({Do::take, other * sets + task % sets, task});
            ranks[me].push_back({Do::fence});
        }
    return Checker(std::move(ranks), 2 * sets);
}

TEST(LamportModel, ThreeSetsSuffice) {
    expect("three sets", lamport(3), true);
    expect("two sets", lamport(2), false);
}

// The receiver posts where to, the sender writes there and says so, and the receiver reads it: in the same kernel, as it does
// with pieces that pass through its arena.
Checker direct_pairs(bool releases, bool acquires) {
    constexpr unsigned data = 0, post = 1, arrived = 2, steps = 4;  // of the receiver
    Program sender, receiver;
    for (unsigned task = 1; task <= 3; ++task) {
        sender.push_back({Do::wait, post, task});
        sender.push_back({Do::store, data, task, 1, (task - 1) * steps});
        sender.push_back({releases ? Do::store_release : Do::store, arrived, task});
        receiver.push_back({Do::store, post, task});
        receiver.push_back({acquires ? Do::wait_acquire : Do::wait, arrived, task});
        receiver.push_back({Do::expect, data, task});
        receiver.push_back({Do::fence});
    }
    return Checker({sender, receiver}, 3);
}

TEST(PairsModel, WhatIsPushedIsThereWhenItIsSaid) {
    expect("pairs", direct_pairs(true, true), true);
    expect("arrived without a release", direct_pairs(false, true), false);
    expect("arrived without an acquire", direct_pairs(true, false), false);
}

// Small blocks leave at once, into slots that take turns; the sender ends when the receiver's line has come, which lies in
// places that take turns as well.
Checker eager_pairs(unsigned slots) {
    constexpr unsigned receiver_steps = 3, sender_steps = 3;
    const unsigned lines = slots;  // behind the slots
    Program sender, receiver;
    for (unsigned message = 1; message <= 4; ++message) {
        const unsigned slot = message % slots;
        const std::size_t read = message > slots ? (message - slots) * receiver_steps - 1 : 0;
        const std::size_t heard = message > slots ? (message - slots) * sender_steps - 1 : 0;
        sender.push_back({Do::store, slot, message, 1, read});
        sender.push_back({Do::wait, lines + slot, message});
        sender.push_back({Do::fence});
        receiver.push_back({Do::store, lines + slot, message, 0, heard});
        receiver.push_back({Do::wait, slot, message});
        receiver.push_back({Do::fence});
    }
    return Checker({sender, receiver}, 2 * slots);
}

TEST(PairsModel, TwoEagerSlotsSuffice) {
    expect("two slots", eager_pairs(2), true);
    expect("one slot", eager_pairs(1), false);
}

}  // namespace
}  // namespace sidestep::models
