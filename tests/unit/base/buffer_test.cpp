// Buffers refer, slices keep what they refer to, allocations own.
#include <array>

#include <gtest/gtest.h>
#include <sidestep/allocation.hpp>
#include <sidestep/buffer.hpp>
#include <sidestep/version.hpp>

namespace sidestep {
namespace {

TEST(Buffer, OfHostMemory) {
    std::array<char, 100> memory{};
    const Buffer buffer = Buffer::host(memory.data(), memory.size());
    EXPECT_EQ(buffer.place(), Place::host());
    EXPECT_EQ(buffer.address(), memory.data());
    EXPECT_EQ(buffer.size(), 100u);
    EXPECT_EQ(buffer.offset(), 0u);
    EXPECT_FALSE(buffer.read_only());
    EXPECT_FALSE(buffer.whole_file());
}

TEST(Buffer, OfConstMemoryIsASourceOnly) {
    const std::array<char, 100> memory{};
    EXPECT_TRUE(Buffer::host(memory.data(), memory.size()).read_only());
    EXPECT_TRUE(Buffer::gpu(1, static_cast<const void*>(memory.data()), 1).read_only());
    EXPECT_TRUE(Buffer::host(memory.data(), memory.size()).slice(1, 2).read_only());
}

TEST(Buffer, OfGpuMemory) {
    void* const address = reinterpret_cast<void*>(0x7f0000000000);
    const Buffer buffer = Buffer::gpu(3, address, 4_MiB);
    EXPECT_EQ(buffer.place(), Place::gpu(3));
    EXPECT_EQ(buffer.address(), address);
    EXPECT_EQ(buffer.to_string(), "gpu:3 0x7f0000000000 4 MiB");
    EXPECT_EQ(Buffer::memory(Place::gpu(3), address, 4_MiB).to_string(), buffer.to_string());
}

TEST(Buffer, OfAWholeFile) {
    const Buffer buffer = Buffer::file("/data/x");
    EXPECT_TRUE(buffer.whole_file());
    EXPECT_EQ(buffer.size(), Buffer::whole);
    EXPECT_EQ(buffer.address(), nullptr);
    EXPECT_EQ(buffer.to_string(), "file:/data/x");
}

TEST(Buffer, OfARangeOfAFile) {
    const Buffer buffer = Buffer::file("/data/x", 4096, 1_MiB);
    EXPECT_FALSE(buffer.whole_file());
    EXPECT_EQ(buffer.offset(), 4096u);
    EXPECT_EQ(buffer.size(), 1_MiB);
    EXPECT_EQ(buffer.to_string(), "file:/data/x@4096+1 MiB");
}

TEST(Buffer, SliceOfMemoryMovesTheAddress) {
    std::array<char, 100> memory{};
    const Buffer part = Buffer::host(memory.data(), memory.size()).slice(10, 20);
    EXPECT_EQ(part.address(), memory.data() + 10);
    EXPECT_EQ(part.offset(), 0u);
    EXPECT_EQ(part.size(), 20u);
    const Buffer inner = part.slice(5, 1);
    EXPECT_EQ(inner.address(), memory.data() + 15);
    EXPECT_EQ(inner.size(), 1u);
}

TEST(Buffer, SliceOfAFileMovesTheOffset) {
    const Buffer part = Buffer::file("/data/x", 4096, 1_MiB).slice(100, 7);
    EXPECT_EQ(part.place(), Place::file("/data/x"));
    EXPECT_EQ(part.offset(), 4196u);
    EXPECT_EQ(part.size(), 7u);
    EXPECT_EQ(part.address(), nullptr);
    EXPECT_FALSE(Buffer::file("/data/x").slice(0, 7).whole_file());
}

TEST(Buffer, SliceOfNothingIsEmpty) {
    std::array<char, 8> memory{};
    const Buffer end = Buffer::host(memory.data(), memory.size()).slice(8, 0);
    EXPECT_EQ(end.size(), 0u);
    EXPECT_EQ(end.address(), memory.data() + 8);
}

TEST(Buffer, DefaultIsEmptyHostMemory) {
    const Buffer buffer;
    EXPECT_EQ(buffer.place(), Place::host());
    EXPECT_EQ(buffer.address(), nullptr);
    EXPECT_EQ(buffer.size(), 0u);
}

class AllocationTest : public testing::Test {
protected:
    Allocation allocate() {
        return Allocation(Buffer::host(memory_.data(), memory_.size()), MemoryKind::pinned,
                          [this] { ++released_; });
    }

    std::array<char, 64> memory_{};
    int released_ = 0;
};

TEST_F(AllocationTest, ReleasesOnceAtItsEnd) {
    {
        const Allocation allocation = allocate();
        EXPECT_TRUE(static_cast<bool>(allocation));
        EXPECT_EQ(allocation.address(), memory_.data());
        EXPECT_EQ(allocation.size(), 64u);
        EXPECT_EQ(allocation.kind(), MemoryKind::pinned);
        EXPECT_EQ(allocation.place(), Place::host());
        EXPECT_EQ(released_, 0);
    }
    EXPECT_EQ(released_, 1);
}

TEST_F(AllocationTest, MovingHandsTheMemoryOn) {
    Allocation first = allocate();
    {
        const Allocation second = std::move(first);
        EXPECT_EQ(second.address(), memory_.data());
        EXPECT_EQ(released_, 0);
    }
    EXPECT_EQ(released_, 1);
    EXPECT_FALSE(static_cast<bool>(first));
}

TEST_F(AllocationTest, AssignmentReleasesWhatWasHeld) {
    Allocation held = allocate();
    held = Allocation();
    EXPECT_EQ(released_, 1);
    EXPECT_FALSE(static_cast<bool>(held));
    held = allocate();
    EXPECT_EQ(released_, 1);
    EXPECT_TRUE(static_cast<bool>(held));
}

TEST(Version, IsThreeNumbers) {
    int major = -1, minor = -1, patch = -1;
    char rest = 0;
    EXPECT_EQ(std::sscanf(version(), "%d.%d.%d%c", &major, &minor, &patch, &rest), 3) << version();
}

}  // namespace
}  // namespace sidestep
