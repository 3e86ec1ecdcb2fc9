// What a seat tells, and what it makes reachable.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

#include "jobs.hpp"

namespace sidestep::collective_seat::seat {
namespace {

using backend::Seat;
using protocol::CollectiveTask;
using protocol::Shape;

class SeatTest : public testing::Test {
protected:
    void SetUp() override {
        rig_ = make_rig(2);
        if (rig_ == nullptr) GTEST_SKIP() << "there are fewer than 2 GPUs";
    }
    Allocation allocate(int gpu, Bytes bytes) {
        auto memory = rig_->backend().allocator()->allocate(Place::gpu(gpu), bytes, MemoryKind::device);
        EXPECT_TRUE(memory.ok()) << memory.error().to_string();
        return memory ? std::move(*memory) : Allocation();
    }
    std::unique_ptr<Seat> seat(unsigned rank, unsigned ranks) {
        auto made = rig_->backend().seats()->seat({rank, ranks, Place::gpu(static_cast<int>(rank))});
        EXPECT_TRUE(made.ok()) << made.error().to_string();
        return made ? std::move(*made) : nullptr;
    }
    std::unique_ptr<Rig> rig_;
};

TEST_F(SeatTest, TheArenaIsZeroedMemoryOfTheGpu) {
    if (rig_->place(1) != Place::gpu(1)) GTEST_SKIP() << "this machine has one GPU";
    const auto made = seat(1, 2);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->arena().place(), Place::gpu(1));
    EXPECT_EQ(made->arena().size(), protocol::ArenaLayout{2}.bytes());
    Values bytes(1 << 20, 1);
    rig_->read(bytes.data(), made->arena().address(), bytes.size());
    EXPECT_EQ(bytes, Values(1 << 20, 0));
}

TEST_F(SeatTest, ExtentIsTheWholeAllocation) {
    const auto made = seat(0, 2);
    ASSERT_NE(made, nullptr);
    std::set<std::uint64_t> identities;
    for (int i = 0; i < 3; ++i) {
        const Allocation memory = allocate(0, 3 << 20);
        const auto extent = made->extent(static_cast<char*>(memory.address()) + 12'345);
        ASSERT_TRUE(extent.ok()) << extent.error().to_string();
        const auto begin = static_cast<char*>(extent->whole.address());
        EXPECT_LE(begin, memory.address());
        EXPECT_GE(begin + extent->whole.size(), static_cast<char*>(memory.address()) + memory.size());
        EXPECT_EQ(extent->whole.place(), Place::gpu(0));
        EXPECT_EQ(made->extent(memory.address())->identity, extent->identity);
        identities.insert(extent->identity);
    }
    EXPECT_EQ(identities.size(), 3u) << "memory that was freed and given out again is other memory";
}

TEST_F(SeatTest, ExtentKnowsWhatIsNoMemoryOfItsGpu) {
    if (rig_->place(1) != Place::gpu(1)) GTEST_SKIP() << "this machine has one GPU";
    const auto made = seat(0, 2);
    ASSERT_NE(made, nullptr);
    const Allocation elsewhere = allocate(1, 4096);
    int local = 0;
    for (const void* address : {static_cast<const void*>(elsewhere.address()),
                                static_cast<const void*>(&local), static_cast<const void*>(nullptr)}) {
        const auto extent = made->extent(address);
        ASSERT_FALSE(extent.ok());
        EXPECT_EQ(extent.error().code, ErrorCode::invalid_argument) << extent.error().to_string();
    }
}

TEST_F(SeatTest, ASeatThatCannotBeIsRefused) {
    backend::Backend& backend = rig_->backend();
    EXPECT_FALSE(backend.seats()->seat({0, 0, Place::gpu(0)}).ok());
    EXPECT_FALSE(backend.seats()->seat({2, 2, Place::gpu(0)}).ok());
    EXPECT_FALSE(backend.seats()->seat({0, protocol::max_ranks + 1, Place::gpu(0)}).ok());
    EXPECT_FALSE(backend.seats()->seat({0, 1, Place::host()}).ok());
    EXPECT_FALSE(backend.seats()->seat({0, 1, Place::gpu(99)}).ok());
}

TEST_F(SeatTest, SlotsThatAreNotThere) {
    const auto made = seat(0, 2);
    ASSERT_NE(made, nullptr);
    EXPECT_FALSE(made->reach(2, 0, {}).ok());
    EXPECT_FALSE(made->reach(0, protocol::max_slots, {}).ok());
    EXPECT_TRUE(made->reach(1, protocol::max_slots - 1, {}).ok());
}

TEST_F(SeatTest, IdleBeforeTheFirstTaskAndAfterTheLast) {
    Crew crew(1);
    EXPECT_TRUE(*crew.seat(0).idle());
    CollectiveTask task;
    task.signature = 1;
    crew.start(0, task);
    ASSERT_TRUE(crew.wait_idle(0));
    EXPECT_FALSE(crew.seat(0).fault().has_value());
}

// Another rank's arena and memory as another process finds them: opened from what was shared, at other
// addresses.
TEST_F(SeatTest, RanksThatKnowEachOtherThroughSharedMemory) {
    if (!rig_->opens_what_it_shares()) GTEST_SKIP() << "a process may not open here what it shared itself";
    const auto other_rig = make_rig(2);
    ASSERT_NE(other_rig, nullptr);
    Rig* const rigs[2] = {rig_.get(), other_rig.get()};
    std::unique_ptr<Seat> seats[2];
    Allocation memory[2];
    std::vector<Allocation> opened;
    for (unsigned rank = 0; rank < 2; ++rank) {
        const Place place = Place::gpu(static_cast<int>(rank));
        auto made = rigs[rank]->backend().seats()->seat({rank, 2, place});
        auto allocated = rigs[rank]->backend().allocator()->allocate(place, 1 << 20, MemoryKind::device);
        ASSERT_TRUE(made.ok() && allocated.ok());
        seats[rank] = std::move(*made);
        memory[rank] = std::move(*allocated);
        ASSERT_TRUE(seats[rank]->reach(rank, 1, backend::bytes_of(memory[rank].buffer())).ok());
    }
    for (unsigned rank = 0; rank < 2; ++rank) {
        const unsigned other = 1 - rank;
        unsigned slot = 0;
        for (const Buffer& buffer : {seats[other]->arena(), memory[other].buffer()}) {
            auto exported = rigs[other]->backend().sharer()->share(buffer);
            ASSERT_TRUE(exported.ok() && exported->has_value());
            auto mapped = seats[rank]->open(**exported);
            ASSERT_TRUE(mapped.ok()) << mapped.error().to_string();
            EXPECT_NE(mapped->address(), buffer.address());
            ASSERT_TRUE(
                seats[rank]
                    ->reach(other, slot++,
                            {static_cast<char*>(mapped->address()) + (*exported)->offset, buffer.size()})
                    .ok());
            opened.push_back(std::move(*mapped));
        }
    }
    for (const Shape shape : {Shape::packets, Shape::lamport, Shape::packets_two_phase, Shape::lines,
                              Shape::slices, Shape::pushed_slices}) {
        const float inputs[2] = {17, 25};
        for (unsigned rank = 0; rank < 2; ++rank) {
            rigs[rank]->write(memory[rank].address(), &inputs[rank], sizeof(float));
            CollectiveTask task;
            task.shape = shape;
            task.signature = 1;
            task.element = protocol::Element::f32;
            task.combine = protocol::Combine::sum;
            task.send = memory[rank].address();
            task.recv = static_cast<char*>(memory[rank].address()) + 512;
            task.send_token = {1, 0};
            task.recv_token = {1, 512};
            for (unsigned r = 0; r < 2; ++r) task.to[r] = task.from[r] = {0, 4};
            task.slices[1] = {1, 0, 0, 3, 3};
            ASSERT_TRUE(seats[rank]->run(task, nullptr).ok());
        }
        for (unsigned rank = 0; rank < 2; ++rank) {
            while (!*seats[rank]->idle()) std::this_thread::sleep_for(std::chrono::microseconds(50));
            ASSERT_FALSE(seats[rank]->fault().has_value()) << to_string(*seats[rank]->fault());
            float sum = 0;
            rigs[rank]->read(&sum, static_cast<char*>(memory[rank].address()) + 512, sizeof(sum));
            EXPECT_EQ(sum, 42) << "rank " << rank;
        }
    }
    for (const auto& each : seats) each->abort();
    seats[0].reset();
    seats[1].reset();
}

TEST_F(SeatTest, WhatCannotBeOpened) {
    const auto made = seat(0, 2);
    ASSERT_NE(made, nullptr);
    backend::Exported exported;
    exported.scheme = "smoke signals";
    exported.place = Place::gpu(1);
    EXPECT_FALSE(made->open(exported).ok());
}

}  // namespace
}  // namespace sidestep::collective_seat::seat
