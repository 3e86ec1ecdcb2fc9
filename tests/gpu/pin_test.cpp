// Page-locking memory that the library did not allocate, how memory is told from what lay there before, and
// which pages pinned memory lies on.
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>

#include <fmt/format.h>

#include <sidestep/context.hpp>

#include "driver/memory_map.hpp"
#include "tests/gpu/raw_memory.hpp"

namespace sidestep::gpu_tests::pin {
namespace {

// Ordinary pages of host memory.
class Pages {
public:
    explicit Pages(Bytes bytes)
        : size_(bytes),
          address_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
    ~Pages() { ::munmap(address_, size_); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    Buffer buffer() const { return Buffer::host(address_, size_); }

private:
    Bytes size_;
    void* address_;
};

class Pin : public ContextTest {
protected:
    static bool pinned(const Buffer& buffer) {
        const auto found = backend().describe(buffer);
        EXPECT_TRUE(found) << found.error().to_string();
        return found && *found && (*found)->memory == MemoryKind::pinned;
    }
    static std::uint64_t identity(const Buffer& buffer) {
        const auto found = backend().describe(buffer);
        EXPECT_TRUE(found) << found.error().to_string();
        return found && *found ? (*found)->identity : 0;
    }
    std::size_t hops_to_gpu(const Buffer& from) {
        const auto target = context_->allocate(Place::gpu(0), from.size());
        CopyOptions one_lane;
        one_lane.lanes = 1;
        const auto route = context_->route(from, target->buffer(), one_lane);
        EXPECT_TRUE(route) << route.error().to_string();
        return route ? route->lanes.at(0).hops.size() : 0;
    }
};

TEST_F(Pin, OrdinaryMemoryIsCopiedDirectlyByEveryGpu) {
    const Pages memory(9_MiB);
    const Buffer buffer = memory.buffer().slice(1000, 8_MiB + 3);
    EXPECT_EQ(hops_to_gpu(buffer), 2u);
    {
        const auto held = context_->pin(buffer);
        ASSERT_TRUE(held) << held.error().to_string();
        EXPECT_TRUE(pinned(buffer));
        EXPECT_EQ(hops_to_gpu(buffer), 1u);
        for (int gpu = 0; gpu < machine().gpus(); ++gpu) {
            const Allocation there = raw_memory(Raw::device, gpu, buffer.size());
            fill(buffer, 77);
            ASSERT_TRUE(context_->copy(buffer, there.buffer()).wait());
            expect_pattern(there.buffer(), 77);
            fill(there.buffer(), 78);
            ASSERT_TRUE(context_->copy(there.buffer(), buffer).wait());
            expect_pattern(buffer, 78);
        }
    }
    EXPECT_FALSE(pinned(buffer));
    EXPECT_EQ(hops_to_gpu(buffer), 2u);
}

TEST_F(Pin, RangesAreSharedAndOverlapsRefused) {
    const Pages memory(1_MiB);
    auto whole = context_->pin(memory.buffer().slice(0, 512_KiB));
    ASSERT_TRUE(whole);
    const auto part = context_->pin(memory.buffer().slice(8192, 4096));
    ASSERT_TRUE(part) << part.error().to_string();
    const auto over = context_->pin(memory.buffer());
    ASSERT_FALSE(over);
    EXPECT_EQ(over.error().code, ErrorCode::invalid_argument);
    *whole = Pinned();
    EXPECT_TRUE(pinned(memory.buffer().slice(0, 512_KiB))) << "the part's holder keeps all of it";
}

TEST_F(Pin, MemoryThatOthersRegisteredIsTakenAsItIs) {
    const Allocation memory = raw_memory(Raw::host_registered, 0, 1_MiB);
    { EXPECT_TRUE(context_->pin(memory.buffer())); }
    EXPECT_TRUE(pinned(memory.buffer()));
}

TEST_F(Pin, MemoryThatOthersRegisteredInPartIsRefused) {
    const Pages memory(1_MiB);
    driver::ScopedCudaContext current(machine().context(0));
    void* const part = memory.buffer().slice(256_KiB, 64_KiB).address();
    expect_success(cuda().cuMemHostRegister(part, 64_KiB, 0), "cuMemHostRegister");
    const auto over = context_->pin(memory.buffer());
    EXPECT_FALSE(over);
    if (!over) {
        EXPECT_EQ(over.error().code, ErrorCode::invalid_argument) << over.error().to_string();
    }
    EXPECT_EQ(hops_to_gpu(memory.buffer()), 2u);
    expect_success(cuda().cuMemHostUnregister(part), "cuMemHostUnregister");
    EXPECT_TRUE(context_->pin(memory.buffer()));
}

TEST_F(Pin, MemoryMappedForReadingOnlyIsASource) {
    std::FILE* const file = std::tmpfile();
    ASSERT_NE(file, nullptr);
    std::vector<unsigned char> bytes(1_MiB);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 4096);
    ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
    ASSERT_EQ(std::fflush(file), 0);
    const void* const mapped = ::mmap(nullptr, bytes.size(), PROT_READ, MAP_PRIVATE, ::fileno(file), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    int supported = 1;
    cuda().cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0);
    {
        const Buffer buffer = Buffer::host(mapped, bytes.size());
        const auto held = context_->pin(buffer);
        EXPECT_EQ(held.ok(), supported != 0) << (held ? "locked" : held.error().to_string());
        if (held) {
            EXPECT_EQ(hops_to_gpu(buffer), 1u);
            const Allocation there = raw_memory(Raw::device, 0, bytes.size());
            ASSERT_TRUE(context_->copy(buffer, there.buffer()).wait());
            std::vector<unsigned char> back(bytes.size());
            ASSERT_TRUE(context_->copy(there.buffer(), Buffer::host(back.data(), back.size())).wait());
            EXPECT_EQ(back, bytes);
        }
    }
    ::munmap(const_cast<void*>(mapped), bytes.size());
    std::fclose(file);
}

TEST_F(Pin, AddressesWithoutMemoryAreRefused) {
    void* const address = ::mmap(nullptr, 1_MiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(address, MAP_FAILED);
    EXPECT_FALSE(context_->pin(Buffer::host(address, 1_MiB)));
    ::munmap(address, 1_MiB);
}

TEST_F(Pin, MemoryOfTheContextStaysLockedUntilItIsFreed) {
    auto memory = context_->allocate(Place::host(), 4_MiB, MemoryKind::pageable);
    ASSERT_TRUE(memory);
    { ASSERT_TRUE(context_->pin(memory->buffer())); }
    EXPECT_TRUE(pinned(memory->buffer()));
    const Buffer was = memory->buffer();
    *memory = Allocation();
    EXPECT_FALSE(pinned(was));
}

// A copy that found it locked counts on that, whoever else makes the cache overflow.
TEST_F(Pin, MemoryThatACopyFoundLockedStaysSoUntilItsEnd) {
    ::setenv("SIDESTEP_PINNED_CACHE", "5000000", 1);
    const auto context = Context::open({"live"});
    ::unsetenv("SIDESTEP_PINNED_CACHE");
    ASSERT_TRUE(context) << context.error().to_string();
    const auto memory = context->allocate(Place::host(), 4_MiB, MemoryKind::pageable);
    const auto other = context->allocate(Place::host(), 4_MiB, MemoryKind::pageable);
    ASSERT_TRUE(memory && other);
    const Allocation there = raw_memory(Raw::device, 0, 4_MiB);
    fill(memory->buffer(), 7);
    CopyOptions one_lane;  // its end is seen in wait()
    one_lane.lanes = 1;
    for (const bool batch : {false, true}) {
        { ASSERT_TRUE(context->pin(memory->buffer())); }
        const BatchItem item{memory->buffer(), there.buffer()};
        Transfer copy =
            batch ? context->copy_batch({item}, one_lane) : context->copy(item.from, item.to, one_lane);
        { ASSERT_TRUE(context->pin(other->buffer())); }
        const bool kept = pinned(memory->buffer());
        EXPECT_TRUE(kept || copy.bytes_done() == 4_MiB) << "it may end in the call that begins it";
        const auto done = copy.wait();
        EXPECT_TRUE(done) << done.error().to_string();
        { ASSERT_TRUE(context->pin(other->buffer())); }
        EXPECT_FALSE(pinned(memory->buffer()));
    }
    expect_pattern(there.buffer(), 7);
}

// The registration cache depends on these three: an identity that stays while memory changes would serve it
// with the access rights of what lay there before.
TEST_F(Pin, MemoryFreedAndAllocatedAgainHasAnotherIdentity) {
    for (const Raw raw :
         {Raw::device, Raw::pool, Raw::vmm, Raw::managed, Raw::host_alloc, Raw::host_registered}) {
        SCOPED_TRACE(to_string(raw));
        std::set<std::uint64_t> seen;
        std::set<void*> addresses;
        for (int round = 0; round < 6; ++round) {
            const Allocation memory = raw_memory(raw, 0, 4_MiB);
            const auto now = identity(memory.buffer());
            addresses.insert(memory.address());
            EXPECT_TRUE(now == 0 || seen.insert(now).second) << "given twice";
            EXPECT_EQ(identity(memory.buffer()), now) << "changes from one call to the next";
        }
        fmt::print("    {}: {} identities, {} addresses in 6 rounds\n", to_string(raw), seen.size(),
                   addresses.size());
    }
}

TEST_F(Pin, RegisteredAgainHasAnotherIdentity) {
    const Pages memory(1_MiB);
    std::set<std::uint64_t> seen;
    for (int round = 0; round < 4; ++round) {
        const auto held = backend().gpu_addresses()->pin(memory.buffer());
        ASSERT_TRUE(held) << held.error().to_string();
        const auto now = identity(memory.buffer());
        EXPECT_TRUE(now == 0 || seen.insert(now).second) << "given twice";
    }
}

TEST_F(Pin, AMappingThatIsReplacedChangesTheIdentityOfAllThatHoldsIt) {
    constexpr Bytes piece = 2_MiB;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, machine().context(0).device()};
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUdeviceptr base = 0;
    expect_success(cuda().cuMemAddressReserve(&base, 2 * piece, 0, 0, 0), "cuMemAddressReserve");
    const auto map = [&](CUdeviceptr at) {
        CUmemGenericAllocationHandle memory = 0;
        expect_success(cuda().cuMemCreate(&memory, piece, &properties, 0), "cuMemCreate");
        expect_success(cuda().cuMemMap(at, piece, 0, memory, 0), "cuMemMap");
        expect_success(cuda().cuMemRelease(memory), "cuMemRelease");
        expect_success(cuda().cuMemSetAccess(at, piece, &access, 1), "cuMemSetAccess");
    };
    map(base);
    map(base + piece);
    const Buffer both = Buffer::gpu(0, reinterpret_cast<void*>(base), 2 * piece);
    const auto before = identity(both);
    const auto first = identity(both.slice(0, piece));
    expect_success(cuda().cuMemUnmap(base + piece, piece), "cuMemUnmap");
    map(base + piece);
    const auto after = identity(both);
    EXPECT_TRUE(before == 0 || before != after) << before;
    EXPECT_EQ(identity(both.slice(0, piece)), first);
    fmt::print("    two mappings: identity {:#x}, then {:#x}\n", before, after);
    expect_success(cuda().cuMemUnmap(base, piece), "cuMemUnmap");
    expect_success(cuda().cuMemUnmap(base + piece, piece), "cuMemUnmap");
    expect_success(cuda().cuMemAddressFree(base, 2 * piece), "cuMemAddressFree");
}

TEST_F(Pin, PinnedMemoryLiesOnHugePages) {
    const auto memory = backend().allocator()->allocate(Place::host(), 64_MiB, MemoryKind::pinned);
    ASSERT_TRUE(memory) << memory.error().to_string();
    EXPECT_TRUE(pinned(memory->buffer()));
    const Bytes huge = driver::huge_bytes(memory->address(), memory->size());
    std::string setting;
    std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), setting);
    fmt::print("    {} of {} on huge pages; transparent huge pages: {}\n", format_bytes(huge),
               format_bytes(memory->size()), setting);
    if (!setting.empty() && setting.find("[never]") == std::string::npos) {
        EXPECT_GT(huge, 0u);
    }
}

}  // namespace
}  // namespace sidestep::gpu_tests::pin
