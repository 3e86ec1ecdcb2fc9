// Copies through the public API between every two kinds of memory that a user may bring.
#include <fmt/format.h>

#include <sidestep/context.hpp>
#include <sidestep/cuda.hpp>

#include "tests/gpu/raw_memory.hpp"

namespace sidestep::gpu_tests::context {
namespace {

constexpr Raw every_raw[] = {Raw::device,          Raw::pool,    Raw::vmm,
                             Raw::vmm_pieces,      Raw::managed, Raw::host_alloc,
                             Raw::host_registered, Raw::pageable};

class ContextCopies : public ContextTest {
protected:
    void copy(const Buffer& from, const Buffer& to, const CopyOptions& options = {}) {
        SCOPED_TRACE(fmt::format("{} to {}", from.to_string(), to.to_string()));
        fill(from, ++seed_);
        clear(to, 0x3C);
        auto receipt = context_->copy(from, to, options).wait();
        ASSERT_TRUE(receipt) << receipt.error().to_string();
        expect_pattern(to, seed_);
    }

    unsigned seed_ = 1000;
};

TEST_F(ContextCopies, EveryTwoKindsOfMemory) {
    const int last = machine().gpus() - 1;
    for (Raw from : every_raw) {
        for (Raw to : every_raw) {
            SCOPED_TRACE(fmt::format("{} to {}", to_string(from), to_string(to)));
            const Allocation source = raw_memory(from, 0, 9_MiB);
            const Allocation target = raw_memory(to, last, 9_MiB);
            copy(source.buffer(), target.buffer());
            copy(source.buffer().slice(3, 4_MiB + 1), target.buffer().slice(1_MiB + 1, 4_MiB + 1));
        }
    }
}

TEST_F(ContextCopies, EveryPairOfGpusWithEachEngine) {
    for (int from = 0; from < machine().gpus(); ++from) {
        for (int to = 0; to < machine().gpus(); ++to) {
            const Allocation source = raw_memory(Raw::device, from, 64_MiB + 1);
            const Allocation target = raw_memory(Raw::device, to, 64_MiB + 1);
            for (Prefer prefer : {Prefer::automatic, Prefer::copy_engine, Prefer::kernel}) {
                CopyOptions options;
                options.prefer = prefer;
                options.verify = prefer == Prefer::automatic;
                copy(source.buffer(), target.buffer(), options);
            }
        }
    }
}

TEST_F(ContextCopies, EverySize) {
    const Allocation gpu = raw_memory(Raw::device, 0, 256_MiB);
    const Allocation pinned = raw_memory(Raw::host_alloc, 0, 256_MiB);
    const Allocation pageable = raw_memory(Raw::pageable, 0, 256_MiB);
    for (Bytes size :
         {Bytes{1}, Bytes{7}, 4_KiB - 1, 64_KiB, 64_KiB + 1, 1_MiB, 4_MiB + 3, 33_MiB, 256_MiB}) {
        copy(pinned.buffer().slice(0, size), gpu.buffer().slice(0, size));
        copy(gpu.buffer().slice(0, size), pinned.buffer().slice(0, size));
        copy(pageable.buffer().slice(0, size), gpu.buffer().slice(0, size));
        copy(gpu.buffer().slice(0, size), pageable.buffer().slice(0, size));
    }
}

TEST_F(ContextCopies, DirectRefusesPageableMemoryAndSaysWhy) {
    const Allocation pageable = raw_memory(Raw::pageable, 0, 1_MiB);
    const Allocation gpu = raw_memory(Raw::device, 0, 1_MiB);
    CopyOptions options;
    options.require = Require::direct;
    auto receipt = context_->copy(pageable.buffer(), gpu.buffer(), options).wait();
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::path_unavailable) << receipt.error().to_string();
    EXPECT_NE(receipt.error().to_string().find("pageable"), std::string::npos) << receipt.error().to_string();
}

TEST_F(ContextCopies, FindsOutWhatAPointerIs) {
    for (Raw raw : every_raw) {
        SCOPED_TRACE(to_string(raw));
        const Allocation memory = raw_memory(raw, 0, 1_MiB);
        auto buffer = cuda::buffer(*context_, memory.address(), 1_MiB);
        ASSERT_TRUE(buffer) << buffer.error().to_string();
        if (raw != Raw::managed) {
            EXPECT_EQ(buffer->place().kind(), memory.place().kind());
        }
    }
}

TEST_F(ContextCopies, WrongGpuIsRefused) {
    if (machine().gpus() < 2) GTEST_SKIP() << "needs two GPUs, this machine has one";
    const Allocation memory = raw_memory(Raw::device, 0, 1_MiB);
    const Allocation target = raw_memory(Raw::device, 1, 1_MiB);
    auto receipt = context_->copy(Buffer::gpu(1, memory.address(), 1_MiB), target.buffer()).wait();
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::invalid_argument) << receipt.error().to_string();
}

TEST_F(ContextCopies, AllocatesFastMemoryByItself) {
    auto gpu = context_->allocate(Place::gpu(0), 8_MiB);
    auto host = context_->allocate(Place::host(), 8_MiB);
    ASSERT_TRUE(gpu && host);
    EXPECT_EQ(gpu->kind(), MemoryKind::device);
    EXPECT_EQ(host->kind(), MemoryKind::pinned);
    copy(host->buffer(), gpu->buffer());
    copy(gpu->buffer(), host->buffer());
}

// Allocations and transfers outlive the Context, whichever goes first.
TEST_F(ContextCopies, MemoryOutlivesTheContext) {
    auto gpu = context_->allocate(Place::gpu(0), 8_MiB);
    ASSERT_TRUE(gpu) << gpu.error().to_string();
    context_.reset();
    fill(gpu->buffer(), 5);
    expect_pattern(gpu->buffer(), 5);
}

}  // namespace
}  // namespace sidestep::gpu_tests::context
