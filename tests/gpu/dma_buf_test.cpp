// Memory of GPUs as dma-bufs, up to where a network card would register it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <fmt/format.h>

#include "backend/device_memory.hpp"
#include "tests/gpu/raw_memory.hpp"

namespace sidestep::gpu_tests::dma_buf {
namespace {

class DmaBuf : public GpuTest {
protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        exporter_ = backend::dma_bufs_of(backend());
        ASSERT_NE(exporter_, nullptr);
    }
    // What the kernel says of a descriptor: "exp_name:\tnvidia..." and the size of what it stands for.
    static std::string told_of(int descriptor) {
        std::ifstream file(fmt::format("/proc/self/fdinfo/{}", descriptor));
        return {std::istreambuf_iterator<char>(file), {}};
    }
    backend::DmaBufs* exporter_ = nullptr;
};

TEST_F(DmaBuf, HoldsAllOfTheMemory) {
    constexpr Bytes size = 3_MiB, offset = 70'000;
    const auto memory = backend().allocator()->allocate(Place::gpu(0), size, MemoryKind::device);
    ASSERT_TRUE(memory) << memory.error().to_string();
    const auto whole = exporter_->dma_buf(memory->buffer());
    if (!whole && whole.error().code == ErrorCode::unsupported) {
        // Where the driver has none a reason is given, and a remedy or the driver's own words.
        EXPECT_FALSE(whole.error().message.empty());
        GTEST_SKIP() << whole.error().to_string();
    }
    ASSERT_TRUE(whole) << whole.error().to_string();
    struct stat facts {};
    ASSERT_EQ(::fstat(whole->descriptor, &facts), 0);
    const std::string told = told_of(whole->descriptor);
    fmt::print("{} bytes in it, from {} on: {}\n", facts.st_size, whole->offset, told);
    EXPECT_NE(told.find("exp_name:"), std::string::npos) << "the kernel knows it as a dma-buf: " << told;
    const auto end = ::lseek(whole->descriptor, 0, SEEK_END);
    EXPECT_GE(static_cast<Bytes>(end), whole->offset + size);
    // A part of it is the same dma-buf, so much further on.
    const auto part = exporter_->dma_buf(memory->buffer().slice(offset, 1_MiB));
    ASSERT_TRUE(part) << part.error().to_string();
    EXPECT_EQ(part->offset, whole->offset + offset);
}

TEST_F(DmaBuf, LastsAsLongAsItIsHeld) {
    const auto memory = backend().allocator()->allocate(Place::gpu(0), 2_MiB, MemoryKind::device);
    ASSERT_TRUE(memory) << memory.error().to_string();
    auto one = exporter_->dma_buf(memory->buffer());
    if (!one) GTEST_SKIP() << one.error().to_string();
    const int descriptor = one->descriptor;
    EXPECT_NE(::fcntl(descriptor, F_GETFD), -1);
    one->keeps.reset();
    EXPECT_EQ(::fcntl(descriptor, F_GETFD), -1) << "closed with its last holder";
}

TEST_F(DmaBuf, OtherMemoryHasNone) {
    const auto pinned = backend().allocator()->allocate(Place::host(), 2_MiB, MemoryKind::pinned);
    ASSERT_TRUE(pinned) << pinned.error().to_string();
    const auto none = exporter_->dma_buf(pinned->buffer());
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code, ErrorCode::unsupported);
}

// What a card is tried out with.
TEST_F(DmaBuf, ScratchHoldsWhatIsBroughtThere) {
    constexpr Bytes size = 256 << 10;
    const auto scratch = exporter_->scratch(Place::gpu(0), size);
    ASSERT_TRUE(scratch) << scratch.error().to_string();
    EXPECT_EQ(scratch->buffer().size(), size);
    for (const char letter : {'a', 'b'}) {
        const std::string sent(size, letter);
        std::string seen(size, '?');
        ASSERT_TRUE(exporter_->copy_in(scratch->buffer(), sent.data()));
        ASSERT_TRUE(exporter_->copy_out(scratch->buffer(), seen.data()));
        EXPECT_TRUE(seen == sent) << letter;
    }
}

TEST_F(DmaBuf, WritesOfCardsAreSeen) {
    const auto seen = exporter_->see_writes(Place::gpu(0));
    if (!seen && seen.error().code == ErrorCode::unsupported) GTEST_SKIP() << seen.error().to_string();
    EXPECT_TRUE(seen) << seen.error().to_string();
}

}  // namespace
}  // namespace sidestep::gpu_tests::dma_buf
