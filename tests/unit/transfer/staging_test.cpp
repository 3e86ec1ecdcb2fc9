// The staging pool: slabs of pinned memory, blocks of their own, and what GPUs lend as relays.
#include "transfer/staging.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "fake_backend.hpp"

namespace sidestep {
namespace {

using test::FakeBackend;
using test::machine;
using transfer::Slab;
using transfer::StagingLease;
using transfer::StagingPool;

class Staging : public testing::Test {
protected:
    Staging() {
        auto owned = std::make_unique<FakeBackend>(FakeBackend::Script{});
        fake = owned.get();
        registry.add(std::move(owned), machine());
    }
    Result<StagingLease> pinned(Bytes bytes, int node = 0) {
        return pool.acquire(Place::host(node), MemoryKind::pinned, bytes);
    }
    Result<StagingLease> relay(Bytes bytes) { return pool.acquire(Place::gpu(0), MemoryKind::device, bytes); }
    int live() const { return *fake->live; }
    // Memory of GPUs that the pool has: leased, idle or waiting to be freed.
    Bytes relayed() const { return *fake->live_gpu_bytes; }

    backend::Registry registry;
    FakeBackend* fake = nullptr;
    StagingPool pool{registry};
};

bool overlap(const Buffer& a, const Buffer& b) {
    const auto* first = static_cast<const char*>(a.address());
    const auto* second = static_cast<const char*>(b.address());
    return first < second + b.size() && second < first + a.size();
}

TEST(SlabTest, HalvesJoinAgain) {
    const auto memory = std::make_shared<std::vector<char>>(1_MiB);
    Slab slab(Allocation(Buffer::host(memory->data(), 1_MiB), MemoryKind::pinned, [memory] {}));
    std::vector<Bytes> pieces;
    while (const auto piece = slab.take(64_KiB)) pieces.push_back(*piece);
    ASSERT_EQ(pieces.size(), 16u);
    EXPECT_FALSE(slab.take(64_KiB));
    std::shuffle(pieces.begin(), pieces.end(), std::mt19937(7));
    for (const Bytes piece : pieces) slab.give_back(piece, 64_KiB);
    EXPECT_EQ(slab.take(1_MiB), Bytes{0});
    EXPECT_FALSE(slab.take(64_KiB));
}

TEST(SlabTest, PiecesLieAtMultiplesOfTheirSizeAndApart) {
    const auto memory = std::make_shared<std::vector<char>>(16_MiB);
    Slab slab(Allocation(Buffer::host(memory->data(), 16_MiB), MemoryKind::pinned, [memory] {}));
    std::mt19937 random(3);
    std::vector<std::pair<Bytes, Bytes>> taken;
    for (int step = 0; step < 4000; ++step) {
        if (!taken.empty() && random() % 2 == 0) {
            std::swap(taken[random() % taken.size()], taken.back());
            slab.give_back(taken.back().first, taken.back().second);
            taken.pop_back();
            continue;
        }
        const Bytes size = 64_KiB << (random() % 6);
        const auto offset = slab.take(size);
        if (!offset) continue;
        EXPECT_EQ(*offset % size, 0u);
        EXPECT_LE(*offset + size, 16_MiB);
        for (const auto& [other, length] : taken)
            EXPECT_TRUE(*offset + size <= other || other + length <= *offset) << *offset << " " << other;
        taken.emplace_back(*offset, size);
    }
    for (const auto& [offset, size] : taken) slab.give_back(offset, size);
    EXPECT_EQ(slab.take(16_MiB), Bytes{0});
}

TEST_F(Staging, WithoutABoundBlocksAreAllocatedAsAskedAndKept) {
    { ASSERT_TRUE(pinned(300_KiB)); }
    EXPECT_EQ(fake->allocated, 512_KiB);
    { ASSERT_TRUE(pinned(400_KiB)); }
    EXPECT_EQ(fake->allocations, 1);
    EXPECT_EQ(pool.pinned_bytes(), 0u);
}

TEST_F(Staging, LeasesAreCarvedFromOneSlabAndUsedAgain) {
    pool.set_pinned_bound(256_MiB);
    for (int round = 0; round < 3; ++round) {
        std::vector<StagingLease> leases;
        for (const Bytes bytes : {Bytes{1}, 64_KiB, 300_KiB, 4_MiB, 8_MiB, 16_MiB}) {
            auto lease = pinned(bytes);
            ASSERT_TRUE(lease) << lease.error().to_string();
            EXPECT_GE(lease->buffer().size(), bytes);
            std::memset(lease->buffer().address(), round, lease->buffer().size());
            for (const StagingLease& other : leases) EXPECT_FALSE(overlap(lease->buffer(), other.buffer()));
            leases.push_back(std::move(*lease));
        }
    }
    EXPECT_EQ(fake->allocations, 1);
    EXPECT_EQ(fake->allocated, 32_MiB);
    EXPECT_EQ(pool.pinned_bytes(), 32_MiB);
}

TEST_F(Staging, SlabsGrowUpToTheBoundOfTheirNode) {
    pool.set_pinned_bound(96_MiB);
    std::vector<StagingLease> leases;
    for (int i = 0; i < 12; ++i) {
        auto lease = pinned(8_MiB);
        ASSERT_TRUE(lease);
        leases.push_back(std::move(*lease));
    }
    EXPECT_EQ(pool.pinned_bytes(), 96_MiB);  // 32, 32 and what is left
    EXPECT_EQ(fake->allocations, 3);
    // Beyond the bound: a block of its own, which the pool does not count.
    auto beyond = pinned(8_MiB);
    ASSERT_TRUE(beyond);
    EXPECT_EQ(fake->allocations, 4);
    EXPECT_EQ(pool.pinned_bytes(), 96_MiB);
    // Another node has a bound of its own.
    ASSERT_TRUE(pinned(8_MiB, 1));
    EXPECT_EQ(pool.pinned_bytes(), 128_MiB);
}

TEST_F(Staging, MoreThanTheBoundIsABlockOfItsOwn) {
    pool.set_pinned_bound(1_MiB);
    auto large = pinned(2_MiB);
    ASSERT_TRUE(large);
    EXPECT_EQ(large->buffer().size(), 2_MiB);
    EXPECT_EQ(pool.pinned_bytes(), 0u);
    auto small = pinned(1_MiB);
    ASSERT_TRUE(small);
    EXPECT_EQ(pool.pinned_bytes(), 1_MiB);
}

TEST_F(Staging, OtherKindsComeFromNoSlab) {
    pool.set_pinned_bound(256_MiB);
    ASSERT_TRUE(pool.acquire(Place::host(), MemoryKind::pageable, 1_MiB));
    EXPECT_EQ(pool.pinned_bytes(), 0u);
    EXPECT_EQ(fake->allocated, 1_MiB);
}

TEST_F(Staging, IdleBlocksHaveABound) {
    std::vector<StagingLease> leases;
    for (int i = 0; i < 5; ++i) leases.push_back(std::move(*pinned(128_MiB)));
    EXPECT_EQ(live(), 5);
    leases.clear();
    EXPECT_EQ(live(), 5);  // who gives back frees nothing
    pool.free_unused();
    EXPECT_EQ(live(), 4);
}

TEST_F(Staging, ARelayOverItsLimitIsRefusedByName) {
    EXPECT_EQ(pool.relay_limit(0), 64_MiB);
    auto first = relay(48_MiB);
    ASSERT_TRUE(first);
    EXPECT_EQ(first->buffer().size(), 48_MiB);
    auto second = relay(20_MiB);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::out_of_memory);
    EXPECT_NE(second.error().message.find("64 MiB"), std::string::npos) << second.error().message;
    EXPECT_NE(second.error().message.find("gpu:0"), std::string::npos) << second.error().message;
    EXPECT_TRUE(relay(16_MiB));
}

TEST_F(Staging, ALimitOfZeroLendsNothing) {
    pool.set_relay_limit(0, 0);
    EXPECT_EQ(pool.relay_limits(), (std::map<int, Bytes>{{0, 0}}));
    auto refused = relay(1);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::out_of_memory);
    EXPECT_EQ(fake->allocations, 0);
}

TEST_F(Staging, ALimitLoweredWhileLeasedHoldsOnceGivenBack) {
    auto lease = relay(40_MiB);
    ASSERT_TRUE(lease);
    pool.set_relay_limit(0, 0);
    std::memset(lease->buffer().address(), 1, lease->buffer().size());
    EXPECT_EQ(live(), 1);
    EXPECT_FALSE(relay(64_KiB));
    *lease = StagingLease();
    EXPECT_EQ(live(), 1);  // the engine's thread gives back, and never frees
    EXPECT_EQ(relayed(), 40_MiB);
    pool.free_unused();
    EXPECT_EQ(live(), 0);
    EXPECT_EQ(relayed(), 0u);
}

TEST_F(Staging, IdleRelaysMakeRoomAndGoWhenTheLimitFalls) {
    { ASSERT_TRUE(relay(40_MiB)); }
    EXPECT_EQ(live(), 1);
    // Too large a block for this; both would exceed the limit.
    auto smaller = relay(10_MiB);
    ASSERT_TRUE(smaller);
    EXPECT_EQ(relayed(), 50_MiB);
    auto other = relay(50_MiB);
    ASSERT_TRUE(other) << other.error().to_string();
    EXPECT_EQ(live(), 2);
    EXPECT_EQ(relayed(), 60_MiB);
    *smaller = StagingLease();
    *other = StagingLease();
    const int made = fake->allocations;
    { ASSERT_TRUE(relay(48_MiB)); }
    EXPECT_EQ(fake->allocations, made);
    pool.set_relay_limit(0, 55_MiB);  // the oldest goes first
    EXPECT_EQ(relayed(), 50_MiB);
    EXPECT_EQ(live(), 1);
    pool.set_relay_limit(0, 49_MiB);
    EXPECT_EQ(live(), 0);
}

TEST_F(Staging, SeveralThreadsShareThePool) {
    pool.set_pinned_bound(64_MiB);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int number = 0; number < 6; ++number)
        threads.emplace_back([&, number] {
            std::mt19937 random(static_cast<unsigned>(number));
            std::vector<StagingLease> leases;
            for (int round = 0; round < 300; ++round) {
                auto lease =
                    random() % 3 == 0 ? relay(1_MiB << random() % 3) : pinned(64_KiB << random() % 6);
                if (random() % 50 == 0) pool.set_relay_limit(0, random() % 2 == 0 ? 64_MiB : 8_MiB);
                if (lease) {
                    std::memset(lease->buffer().address(), number, 64);
                    leases.push_back(std::move(*lease));
                }
                for (const StagingLease& held : leases)
                    if (static_cast<const char*>(held.buffer().address())[63] != number) ++wrong;
                if (leases.size() > 4) leases.erase(leases.begin());
            }
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_LE(pool.pinned_bytes(), 64_MiB);
    pool.set_relay_limit(0, 0);
    EXPECT_EQ(relayed(), 0u);
}

}  // namespace
}  // namespace sidestep
