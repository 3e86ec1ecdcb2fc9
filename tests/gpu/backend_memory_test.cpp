// What the CUDA backend knows about memory, and the memory it gives.
#include <fmt/format.h>

#include "backends/cuda/cuda_backend.hpp"
#include "backends/cuda/kernel_image.hpp"
#include "tests/gpu/raw_memory.hpp"

namespace sidestep::gpu_tests::backend_memory {
namespace {

constexpr Bytes size = 3_MiB + 5;

class Memory : public GpuTest {
protected:
    static ErrorCode code_of_describe(const Buffer& buffer) {
        auto described = backend().describe(buffer);
        if (described) return ErrorCode{};
        std::string text = described.error().to_string();
        EXPECT_FALSE(text.empty());
        return described.error().code;
    }
};

TEST_F(Memory, ABuildWithoutKernelsSaysSo) {
    const auto refused = backends::cuda::load_kernels(cuda(), backends::cuda::no_kernels, "the copy kernel");
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
    EXPECT_EQ(refused.error().message, "the copy kernel needs GPU kernels, and this build has none");
    EXPECT_NE(refused.error().hint.find("SIDESTEP_GPU_ARCHITECTURES"), std::string::npos);
}

TEST_F(Memory, ProbeOpensNoContext) {
    auto fresh = backends::cuda::create();
    int devices = 0;
    expect_success(cuda().cuDeviceGetCount(&devices), "cuDeviceGetCount");
    std::vector<int> before;
    for (int round = 0; round < 2; ++round) {
        for (int device = 0; device < devices; ++device) {
            unsigned flags = 0;
            int active = 0;
            expect_success(cuda().cuDevicePrimaryCtxGetState(device, &flags, &active),
                           "cuDevicePrimaryCtxGetState");
            if (round == 0) {
                before.push_back(active);
            } else {
                EXPECT_EQ(active, before[static_cast<std::size_t>(device)]) << "device " << device;
            }
        }
        if (round == 0) {
            EXPECT_TRUE(fresh->probe(machine().topology()).usable);
        }
    }
}

TEST_F(Memory, RefusesAModelledMachine) {
    auto model = Topology::model("dgx-h100");
    ASSERT_TRUE(model) << model.error().to_string();
    const auto support = backends::cuda::create()->probe(*model);
    EXPECT_FALSE(support.usable);
    EXPECT_FALSE(support.remedy.empty());
}

TEST_F(Memory, DescribesEveryKindGotByHand) {
    for (int gpu = 0; gpu < machine().gpus(); ++gpu) {
        for (Raw raw : {Raw::device, Raw::pool, Raw::vmm, Raw::vmm_pieces, Raw::managed, Raw::host_alloc,
                        Raw::host_registered}) {
            SCOPED_TRACE(fmt::format("{} of gpu:{}", to_string(raw), gpu));
            const Allocation memory = raw_memory(raw, gpu, size);
            auto described = backend().describe(memory.buffer());
            ASSERT_TRUE(described) << described.error().to_string();
            ASSERT_TRUE(*described);
            EXPECT_EQ((*described)->memory, kind_of(raw));
            EXPECT_EQ((*described)->place, memory.place());
            auto located = backend().gpu_addresses()->locate(memory.address(), size);
            ASSERT_TRUE(located) << located.error().to_string();
            EXPECT_EQ(located->memory, kind_of(raw));
            if (raw != Raw::managed) {
                EXPECT_EQ(located->place, memory.place());
            }
        }
    }
}

TEST_F(Memory, LeavesPageableMemoryToOthers) {
    const Allocation memory = raw_memory(Raw::pageable, 0, size);
    auto described = backend().describe(memory.buffer());
    ASSERT_TRUE(described) << described.error().to_string();
    EXPECT_FALSE(*described);
    auto located = backend().gpu_addresses()->locate(memory.address(), size);
    ASSERT_TRUE(located) << located.error().to_string();
    EXPECT_EQ(located->memory, MemoryKind::pageable);
    EXPECT_EQ(located->place, Place::host());
    auto attached = backend().attach(memory.buffer(), {});
    ASSERT_FALSE(attached);
    EXPECT_EQ(attached.error().code, ErrorCode::unsupported);
}

TEST_F(Memory, MemoryPinnedInPartIsPageable) {
    const Allocation memory = raw_memory(Raw::pageable, 0, 4_MiB);
    driver::ScopedCudaContext current(machine().context(0));
    expect_success(cuda().cuMemHostRegister(memory.address(), 2_MiB, 0), "cuMemHostRegister");
    auto described = backend().describe(memory.buffer());
    ASSERT_TRUE(described) << described.error().to_string();
    EXPECT_FALSE(*described);
    auto half = backend().describe(memory.buffer().slice(0, 2_MiB));
    ASSERT_TRUE(half && *half);
    EXPECT_EQ((*half)->memory, MemoryKind::pinned);
    expect_success(cuda().cuMemHostUnregister(memory.address()), "cuMemHostUnregister");
}

TEST_F(Memory, RefusesWrongClaims) {
    const Allocation device = raw_memory(Raw::device, 0, size);
    const Allocation pinned = raw_memory(Raw::host_alloc, 0, size);
    const Allocation pageable = raw_memory(Raw::pageable, 0, size);
    EXPECT_EQ(code_of_describe(Buffer::host(device.address(), size)), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of_describe(Buffer::gpu(0, pinned.address(), size)), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of_describe(Buffer::gpu(0, pageable.address(), size)), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of_describe(Buffer::gpu(machine().gpus(), device.address(), size)), ErrorCode::not_found);
    if (machine().gpus() < 2) return;
    auto described = backend().describe(Buffer::gpu(1, device.address(), size));
    ASSERT_FALSE(described);
    EXPECT_EQ(described.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(described.error().message.find("gpu:0"), std::string::npos) << described.error().message;
}

TEST_F(Memory, RefusesBuffersThatReachTooFar) {
    for (Raw raw : {Raw::device, Raw::vmm, Raw::vmm_pieces, Raw::managed}) {
        SCOPED_TRACE(to_string(raw));
        const Allocation memory = raw_memory(raw, 0, 4_MiB);
        if (raw != Raw::managed) {
            EXPECT_EQ(code_of_describe(Buffer::gpu(0, memory.address(), 1_GiB)), ErrorCode::invalid_argument);
        }
        EXPECT_EQ(code_of_describe(memory.buffer()), ErrorCode{});
        EXPECT_EQ(code_of_describe(memory.buffer().slice(1, 4_MiB - 1)), ErrorCode{});
    }
}

TEST_F(Memory, RefusesFreedMemory) {
    Allocation memory = raw_memory(Raw::device, 0, 64_MiB);
    const Buffer buffer = memory.buffer();
    EXPECT_EQ(code_of_describe(buffer), ErrorCode{});
    memory = Allocation();
    EXPECT_EQ(code_of_describe(buffer), ErrorCode::invalid_argument);
}

TEST_F(Memory, GivesEveryKindItLists) {
    for (int gpu = 0; gpu < machine().gpus(); ++gpu) {
        for (MemoryKind kind : {MemoryKind::device, MemoryKind::pool, MemoryKind::vmm, MemoryKind::managed}) {
            SCOPED_TRACE(fmt::format("{} of gpu:{}", sidestep::to_string(kind), gpu));
            ASSERT_TRUE(backend().allocator()->allocates(PlaceKind::gpu).has(kind));
            auto memory = backend().allocator()->allocate(Place::gpu(gpu), size, kind);
            ASSERT_TRUE(memory) << memory.error().to_string();
            EXPECT_EQ(memory->kind(), kind);
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->address()) % 256, 0u);
            auto described = backend().describe(memory->buffer());
            ASSERT_TRUE(described) << described.error().to_string();
            EXPECT_EQ((*described)->memory, kind);
            fill(memory->buffer(), 3);
            expect_pattern(memory->buffer(), 3);
        }
    }
    for (const Place& place : {Place::host(), Place::host(0)}) {
        auto memory = backend().allocator()->allocate(place, size, MemoryKind::pinned);
        ASSERT_TRUE(memory) << memory.error().to_string();
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->address()) % 4096, 0u);
        auto described = backend().describe(memory->buffer());
        ASSERT_TRUE(described && *described);
        EXPECT_EQ((*described)->memory, MemoryKind::pinned);
        fill(memory->buffer(), 4);
        expect_pattern(memory->buffer(), 4);
    }
}

TEST_F(Memory, SaysWhatWasAskedAndWhatIsFree) {
    for (MemoryKind kind : {MemoryKind::device, MemoryKind::pool, MemoryKind::vmm, MemoryKind::managed}) {
        SCOPED_TRACE(sidestep::to_string(kind));
        auto memory = backend().allocator()->allocate(Place::gpu(0), Bytes{1} << 42, kind);
        ASSERT_FALSE(memory);
        EXPECT_EQ(memory.error().code, ErrorCode::out_of_memory) << memory.error().to_string();
        EXPECT_NE(memory.error().message.find("4 TiB"), std::string::npos) << memory.error().to_string();
        EXPECT_NE(memory.error().message.find("free"), std::string::npos) << memory.error().to_string();
    }
    auto pinned = backend().allocator()->allocate(Place::host(), Bytes{1} << 46, MemoryKind::pinned);
    ASSERT_FALSE(pinned);
    EXPECT_EQ(pinned.error().code, ErrorCode::out_of_memory) << pinned.error().to_string();
}

TEST_F(Memory, OutlivesTheBackend) {
    auto own = backends::cuda::create();
    ASSERT_TRUE(own->probe(machine().topology()).usable);
    std::vector<Allocation> kept;
    for (MemoryKind kind : {MemoryKind::device, MemoryKind::pool, MemoryKind::vmm, MemoryKind::managed})
        kept.push_back(own->allocator()->allocate(Place::gpu(0), size, kind).value());
    kept.push_back(own->allocator()->allocate(Place::host(), size, MemoryKind::pinned).value());
    own.reset();
    for (const Allocation& memory : kept) {
        fill(memory.buffer(), 9);
        expect_pattern(memory.buffer(), 9);
    }
}

TEST_F(Memory, ReturnsWhatItFrees) {
    driver::ScopedCudaContext current(machine().context(0));
    for (MemoryKind kind : {MemoryKind::device, MemoryKind::vmm, MemoryKind::managed}) {
        SCOPED_TRACE(sidestep::to_string(kind));
        std::size_t free_before = 0;
        std::size_t free_after = 0;
        std::size_t total = 0;
        { auto warm_up = backend().allocator()->allocate(Place::gpu(0), 64_MiB, kind); }
        expect_success(cuda().cuMemGetInfo(&free_before, &total), "cuMemGetInfo");
        for (int i = 0; i < 20; ++i) {
            auto memory = backend().allocator()->allocate(Place::gpu(0), 64_MiB, kind);
            ASSERT_TRUE(memory) << memory.error().to_string();
        }
        expect_success(cuda().cuMemGetInfo(&free_after, &total), "cuMemGetInfo");
        EXPECT_GE(free_after + 128_MiB, free_before);
    }
}

TEST_F(Memory, OfAPoolGoesAgainWhereItCannotBeWaitedFor) {
    driver::ScopedCudaContext current(machine().context(0));
    const auto allocate = [this](Bytes bytes) {
        return backend().allocator()->allocate(Place::gpu(0), bytes, MemoryKind::pool);
    };
    const auto free_bytes = [&] {
        EXPECT_TRUE(allocate(1_MiB));  // behind what is still to be freed
        std::size_t free = 0;
        std::size_t total = 0;
        expect_success(cuda().cuMemGetInfo(&free, &total), "cuMemGetInfo");
        return free;
    };
    const std::size_t before = free_bytes();
    ::setenv("FAKE_CUDA_FAIL", "cuStreamSynchronize:1", 1);
    const auto memory = allocate(64_MiB);
    ::unsetenv("FAKE_CUDA_FAIL");
    if (memory) GTEST_SKIP() << "this driver cannot be told to fail";
    EXPECT_GE(free_bytes() + 32_MiB, before);
}

}  // namespace
}  // namespace sidestep::gpu_tests::backend_memory
