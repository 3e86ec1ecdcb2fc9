// Memory that a Context gives, locks, and lends to copies, on emulated machines.
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include <sidestep/sidestep.hpp>
#include "context/impl.hpp"
#include "transfer/batch_plan.hpp"

namespace sidestep {
namespace {

// An environment variable for as long as the value lives.
class Setting {
public:
    Setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
    ~Setting() { ::unsetenv(name_); }
    Setting(const Setting&) = delete;
    Setting& operator=(const Setting&) = delete;

private:
    const char* name_;
};

// Ordinary memory that begins at a page, `pages` pages of it.
class Pages {
public:
    explicit Pages(Bytes pages) : size_(pages * 4096), address_(std::aligned_alloc(4096, size_)) {
        for (Bytes i = 0; i < size_; ++i) bytes()[i] = static_cast<unsigned char>(i * 31 + i / 4096);
    }
    ~Pages() { std::free(address_); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    unsigned char* bytes() const { return static_cast<unsigned char*>(address_); }
    Buffer buffer() const { return Buffer::host(address_, size_); }
    Buffer buffer(Bytes first_page, Bytes pages) const {
        return buffer().slice(first_page * 4096, pages * 4096);
    }

private:
    Bytes size_;
    void* address_;
};

class MemoryTest : public testing::Test {
protected:
    MemoryTest() : context(*Context::open({"dgx-h100"})) {}

    static sidestep::context::Pins& pins(const Context& of) { return *ContextAccess::impl(of).pins; }
    sidestep::context::Pins& pins() { return pins(context); }
    static transfer::StagingPool& pool(const Context& of) {
        return ContextAccess::impl(of).engine->machine().pool;
    }
    std::size_t hops_to_gpu(const Buffer& from) {
        auto target = context.allocate(Place::gpu(0), from.size());
        CopyOptions one_lane;
        one_lane.lanes = 1;
        const auto route = context.route(from, target->buffer(), one_lane);
        EXPECT_TRUE(route) << route.error().to_string();
        return route ? route->lanes.at(0).hops.size() : 0;
    }
    static ErrorCode code_of(const Result<Pinned>& pinned) {
        return pinned ? ErrorCode{} : pinned.error().code;
    }

    Context context;
};

TEST_F(MemoryTest, PinnedMemoryIsCopiedWithoutStaging) {
    const Pages memory(300);
    EXPECT_EQ(hops_to_gpu(memory.buffer()), 2u);
    {
        const auto pinned = context.pin(memory.buffer());
        ASSERT_TRUE(pinned) << pinned.error().to_string();
        EXPECT_TRUE(*pinned);
        EXPECT_EQ(pinned->buffer().address(), memory.bytes());
        EXPECT_EQ(hops_to_gpu(memory.buffer()), 1u);
        EXPECT_EQ(hops_to_gpu(memory.buffer(3, 5)), 1u);
        auto gpu = context.allocate(Place::gpu(0), memory.buffer().size());
        ASSERT_TRUE(context.copy(memory.buffer(), gpu->buffer()).wait());
        Pages back(300);
        std::memset(back.bytes(), 0, back.buffer().size());
        ASSERT_TRUE(context.copy(gpu->buffer(), back.buffer()).wait());
        EXPECT_EQ(std::memcmp(back.bytes(), memory.bytes(), memory.buffer().size()), 0);
    }
    // Memory of others is unlocked with the last holder.
    EXPECT_EQ(pins().locked(), 0u);
    EXPECT_EQ(hops_to_gpu(memory.buffer()), 2u);
}

TEST_F(MemoryTest, WholePagesAreLocked) {
    const Pages memory(4);
    const auto pinned = context.pin(Buffer::host(memory.bytes() + 4000, 200));
    ASSERT_TRUE(pinned);
    EXPECT_EQ(pinned->buffer().size(), 200u);
    EXPECT_EQ(pins().locked(), 8192u);
    EXPECT_EQ(hops_to_gpu(memory.buffer(0, 2)), 1u);
    // Locked in part only counts as not locked.
    EXPECT_EQ(hops_to_gpu(memory.buffer(0, 3)), 2u);
    EXPECT_EQ(hops_to_gpu(memory.buffer(2, 2)), 2u);
}

TEST_F(MemoryTest, ARangeIsLockedOnceAndSharedByItsHolders) {
    const Pages memory(16);
    auto whole = context.pin(memory.buffer());
    ASSERT_TRUE(whole);
    auto part = context.pin(memory.buffer(3, 2));
    ASSERT_TRUE(part) << part.error().to_string();
    EXPECT_EQ(part->buffer().address(), memory.bytes() + 3 * 4096);
    EXPECT_EQ(pins().locked(), 16 * 4096u);
    *whole = Pinned();
    EXPECT_EQ(pins().locked(), 16 * 4096u);
    const Pinned copy = *part;
    *part = Pinned();
    EXPECT_EQ(pins().locked(), 16 * 4096u);
    EXPECT_EQ(hops_to_gpu(memory.buffer()), 1u);
}

TEST_F(MemoryTest, RangesThatOverlapAreRefused) {
    const Pages memory(16);
    const auto first = context.pin(memory.buffer(4, 4));
    ASSERT_TRUE(first);
    for (const Buffer& other : {memory.buffer(0, 5), memory.buffer(7, 4), memory.buffer(0, 16)}) {
        const auto second = context.pin(other);
        ASSERT_FALSE(second);
        EXPECT_EQ(second.error().code, ErrorCode::invalid_argument);
        EXPECT_NE(second.error().message.find("locked already"), std::string::npos) << second.error().message;
    }
    EXPECT_TRUE(context.pin(memory.buffer(8, 8)));
    EXPECT_TRUE(context.pin(memory.buffer(0, 4)));
}

TEST_F(MemoryTest, MemoryOfTheContextStaysLockedUntilItIsFreed) {
    auto memory = context.allocate(Place::host(), 1_MiB, MemoryKind::pageable);
    ASSERT_TRUE(memory);
    { ASSERT_TRUE(context.pin(memory->buffer())); }
    EXPECT_EQ(pins().idle(), 1_MiB);
    EXPECT_EQ(hops_to_gpu(memory->buffer()), 1u);
    const auto again = context.pin(memory->buffer().slice(0, 4096));
    ASSERT_TRUE(again);
    EXPECT_EQ(pins().idle(), 0u);
    EXPECT_EQ(pins().locked(), 1_MiB);
    *memory = Allocation();
    EXPECT_EQ(pins().locked(), 0u);
    // Whatever lies at that address next is ordinary memory.
    void* const next =
        ::mmap(again->buffer().address(), 1_MiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(next, MAP_FAILED);
    EXPECT_EQ(hops_to_gpu(Buffer::host(next, 1_MiB)), 2u);
    ::munmap(next, 1_MiB);
}

TEST_F(MemoryTest, AWiderRangeTakesTheOneThatNobodyHolds) {
    auto memory = context.allocate(Place::host(), 1_MiB, MemoryKind::pageable);
    { ASSERT_TRUE(context.pin(memory->buffer().slice(0, 64_KiB))); }
    { ASSERT_TRUE(context.pin(memory->buffer().slice(512_KiB, 64_KiB))); }
    EXPECT_EQ(pins().locked(), 128_KiB);
    const auto gpu = context.allocate(Place::gpu(0), 128_KiB);
    const auto use = [&](Bytes offset, Bytes size) {
        const Buffer from = memory->buffer().slice(offset, size);
        const Buffer to = gpu->buffer().slice(0, size);
        const transfer::BatchCopy copy{&from, &to};
        return pins().use({&copy, 1});
    };
    auto used = use(0, 64_KiB);
    EXPECT_EQ(code_of(context.pin(memory->buffer())), ErrorCode::invalid_argument);
    EXPECT_EQ(pins().locked(), 128_KiB) << "a copy found it locked";
    used.reset();
    EXPECT_FALSE(use(448_KiB, 128_KiB)) << "locked in part only";
    EXPECT_FALSE(use(512_KiB, 128_KiB));
    Transfer over = context.copy(memory->buffer().slice(0, 64_KiB), gpu->buffer().slice(0, 64_KiB));
    EXPECT_TRUE(over.wait());
    const auto whole = context.pin(memory->buffer());
    ASSERT_TRUE(whole) << whole.error().to_string();
    EXPECT_EQ(pins().locked(), 1_MiB);
    EXPECT_EQ(pins().idle(), 0u);
}

TEST_F(MemoryTest, WhatStaysLockedHasABound) {
    const Setting bound("SIDESTEP_PINNED_CACHE", "1MiB");
    const Context small = *Context::open({"dgx-h100"});
    std::vector<Allocation> memory;
    for (int i = 0; i < 4; ++i)
        memory.push_back(std::move(*small.allocate(Place::host(), 400_KiB, MemoryKind::pageable)));
    for (const Allocation& each : memory) ASSERT_TRUE(small.pin(each.buffer()));
    EXPECT_EQ(pins(small).locked(), 800_KiB);    // the first two went
    ASSERT_TRUE(small.pin(memory[2].buffer()));  // found again: now 3 is the oldest
    ASSERT_TRUE(small.pin(memory[0].buffer()));
    EXPECT_EQ(pins(small).locked(), 800_KiB);
    const auto held = small.pin(memory[3].buffer());
    EXPECT_EQ(pins(small).locked(), 1200_KiB) << "it was the one to go";
}

TEST_F(MemoryTest, WhatIsHeldIsNotBounded) {
    const Setting none("SIDESTEP_PINNED_CACHE", "0");
    const Context small = *Context::open({"dgx-h100"});
    const auto memory = *small.allocate(Place::host(), 1_MiB, MemoryKind::pageable);
    auto held = small.pin(memory.buffer());
    ASSERT_TRUE(held);
    EXPECT_EQ(pins(small).locked(), 1_MiB);
    *held = Pinned();
    EXPECT_EQ(pins(small).locked(), 0u);
}

TEST_F(MemoryTest, PinnedMemoryIsTakenAsItIs) {
    const auto memory = context.allocate(Place::host(), 1_MiB, MemoryKind::pinned);
    const auto pinned = context.pin(memory->buffer());
    ASSERT_TRUE(pinned) << pinned.error().to_string();
    EXPECT_TRUE(*pinned);
    EXPECT_EQ(pins().locked(), 0u);
}

TEST_F(MemoryTest, WhatCannotBePinnedIsRefused) {
    const Pages memory(1);
    const auto gpu = context.allocate(Place::gpu(0), 4096);
    EXPECT_EQ(code_of(context.pin(gpu->buffer())), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of(context.pin(Buffer::file("/tmp/x"))), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of(context.pin(memory.buffer().slice(0, 0))), ErrorCode::invalid_argument);
    EXPECT_EQ(code_of(context.pin(Buffer::host(static_cast<void*>(nullptr), 5))),
              ErrorCode::invalid_argument);
    EXPECT_EQ(code_of(context.pin(Buffer::memory(Place::host(77), memory.bytes(), 5))), ErrorCode::not_found);
}

TEST_F(MemoryTest, PinsOutliveTheContext) {
    const Pages memory(4);
    Pinned pinned;
    Allocation own;
    {
        const Context other = *Context::open({"dgx-h100"});
        pinned = *other.pin(memory.buffer());
        own = *other.allocate(Place::host(), 1_MiB, MemoryKind::pageable);
        ASSERT_TRUE(other.pin(own.buffer()));
    }
    own = Allocation();
    EXPECT_TRUE(pinned);
}

TEST_F(MemoryTest, ThreadsPinAndLetGo) {
    const Pages memory(64);
    auto own = context.allocate(Place::host(), 256_KiB, MemoryKind::pageable);
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < 4; ++number)
        threads.emplace_back([&, number] {
            for (unsigned round = 0; round < 300; ++round) {
                const auto apart = context.pin(memory.buffer(16 * number, 16));
                EXPECT_TRUE(apart) << apart.error().to_string();
                // The same range for all of them, so one locks and the others find it.
                const auto shared = context.pin(own->buffer());
                EXPECT_TRUE(shared) << shared.error().to_string();
            }
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(pins().locked(), 256_KiB);
    EXPECT_EQ(pins().idle(), 256_KiB);
}

TEST_F(MemoryTest, WithoutAGpuPinningSaysWhy) {
    const Context live = *Context::open({"live"});
    for (const BackendStatus& status : live.backends())
        if (status.name == "cuda" && status.usable) GTEST_SKIP() << "this machine has a usable GPU";
    const Pages memory(1);
    const auto pinned = live.pin(memory.buffer());
    ASSERT_FALSE(pinned);
    EXPECT_EQ(pinned.error().code, ErrorCode::unsupported);
    EXPECT_NE(pinned.error().message.find("page-lock"), std::string::npos);
}

TEST_F(MemoryTest, EmulatedMemoryHasAnIdentityOfItsOwn) {
    const auto identity = [this](const Buffer& buffer) {
        for (backend::Backend* backend : ContextAccess::impl(context).registry.usable())
            if (auto found = backend->describe(buffer); found && *found) return (*found)->identity;
        return std::uint64_t{0};
    };
    std::set<std::uint64_t> seen;
    for (int round = 0; round < 8; ++round) {
        const auto memory = context.allocate(round % 2 == 0 ? Place::gpu(1) : Place::host(), 1_MiB);
        const auto first = identity(memory->buffer());
        EXPECT_NE(first, 0u);
        EXPECT_EQ(identity(memory->buffer().slice(4096, 4096)), first);
        EXPECT_TRUE(seen.insert(first).second) << "given twice";
    }
    const Pages plain(1);
    EXPECT_EQ(identity(plain.buffer()), 0u);
}

TEST_F(MemoryTest, StagingComesFromThePinnedPool) {
    const Pages memory(300);
    const auto gpu = context.allocate(Place::gpu(0), memory.buffer().size());
    EXPECT_EQ(pool(context).pinned_bytes(), 0u);
    for (int round = 0; round < 3; ++round) ASSERT_TRUE(context.copy(memory.buffer(), gpu->buffer()).wait());
    EXPECT_EQ(pool(context).pinned_bytes(), 32_MiB);

    const Setting none("SIDESTEP_PINNED_POOL", "0");
    const Context without = *Context::open({"dgx-h100"});
    const auto target = without.allocate(Place::gpu(0), memory.buffer().size());
    ASSERT_TRUE(without.copy(memory.buffer(), target->buffer()).wait());
    EXPECT_EQ(pool(without).pinned_bytes(), 0u);
}

TEST_F(MemoryTest, RelayMemoryIsSetByOptionEnvironmentAndCall) {
    EXPECT_EQ(pool(context).relay_limit(7), 64_MiB);
    ASSERT_TRUE(context.set_relay_memory(Place::gpu(3), 0));
    EXPECT_EQ(pool(context).relay_limit(3), 0u);
    EXPECT_EQ(pool(context).relay_limit(2), 64_MiB);
    EXPECT_EQ(context.set_relay_memory(Place::gpu(8), 1).error().code, ErrorCode::not_found);
    EXPECT_EQ(context.set_relay_memory(Place::host(), 1).error().code, ErrorCode::invalid_argument);

    const Setting environment("SIDESTEP_RELAY_MEMORY", "16MiB");
    EXPECT_EQ(pool(*Context::open({"dgx-h100"})).relay_limit(7), 16_MiB);
    ContextOptions options{"dgx-h100"};
    options.relay_memory = 0;
    const Context lends_none = *Context::open(options);
    for (int gpu = 0; gpu < 8; ++gpu) EXPECT_EQ(pool(lends_none).relay_limits().at(gpu), 0u);
}

}  // namespace
}  // namespace sidestep
