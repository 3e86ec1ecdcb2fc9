// Memory that communicators know before they use it, and memory that is registered.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/nccl/world.hpp"

namespace sidestep::nccl_test::memory {
namespace {

void expect_sum(const World& world, const std::vector<Memory>& data, std::size_t offset = 0) {
    for (std::size_t r = 0; r < data.size(); ++r) {
        const auto bytes = encode(ncclInt32, std::vector<double>(50'000, static_cast<double>(r + 1)));
        std::memcpy(data[r].at(offset), bytes.data(), bytes.size());
    }
    ASSERT_NCCL(world.together([&](int rank) {
        void* own = data[static_cast<std::size_t>(rank)].at(offset);
        EXPECT_NCCL(ncclAllReduce(own, own, 50'000, ncclInt32, ncclSum, world[rank], nullptr));
    }));
    const int n = world.ranks();
    for (const Memory& result : data)
        EXPECT_EQ(decode(ncclInt32, result.at(offset), 50'000), std::vector<double>(50'000, n * (n + 1) / 2));
}

TEST(NcclMemory, OlderAndYoungerThanTheCommunicator) {
    std::vector<Memory> before;
    for (int rank = 0; rank < 3; ++rank) before.emplace_back(rank, std::size_t{200'000});
    const World world(3);
    expect_sum(world, before);
    for (int turn = 0; turn < 3; ++turn) {
        const auto after = world.memory(200'100);
        expect_sum(world, after, 100);
    }
    expect_sum(world, before);
}

TEST(NcclMemory, Registered) {
    const World world(2);
    const auto data = world.memory(400'000);
    std::vector<void*> handles(2);
    std::vector<ncclWindow_t> windows(2);
    ASSERT_NCCL(world.together([&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        EXPECT_NCCL(ncclCommRegister(world[rank], data[r].at(64), 200'000, &handles[r]));
        EXPECT_NCCL(ncclCommWindowRegister(world[rank], data[r].data(), 400'000, &windows[r],
                                           NCCL_WIN_COLL_SYMMETRIC));
    }));
    EXPECT_NE(handles[0], nullptr);
    EXPECT_NE(windows[1], nullptr);
    expect_sum(world, data, 64);
    for (int rank = 0; rank < 2; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        EXPECT_NCCL(ncclCommDeregister(world[rank], handles[r]));
        EXPECT_EQ(ncclCommDeregister(world[rank], handles[r]), +ncclInvalidArgument);
        EXPECT_NCCL(ncclCommWindowDeregister(world[rank], windows[r]));
    }
    expect_sum(world, data);
    EXPECT_EQ(ncclCommRegister(world[0], nullptr, 1, &handles[0]), +ncclInvalidArgument);
    EXPECT_NCCL(ncclCommWindowDeregister(world[0], nullptr));
}

TEST(NcclMemory, FlagsOfWindows) {
    const World world(1);
    const auto data = world.memory(4096);
    for (const int flags : {NCCL_WIN_DEFAULT, NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_STRICT_ORDERING,
                            NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING}) {
        ncclWindow_t window = nullptr;
        EXPECT_NCCL(ncclCommWindowRegister(world[0], data[0].data(), 4096, &window, flags)) << flags;
        EXPECT_NE(window, nullptr);
        EXPECT_NCCL(ncclCommWindowDeregister(world[0], window));
    }
    ncclWindow_t window = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(world[0], data[0].data(), 4096, &window, 4), +ncclInvalidArgument);
    EXPECT_EQ(last_error(), "ncclCommWindowRegister: unknown flags: 0x4");
}

TEST(NcclMemory, AWindowOfNoMemory) {
    const World world(1);
    ncclWindow_t window = reinterpret_cast<ncclWindow_t>(&window);
    EXPECT_NCCL(ncclCommWindowRegister(world[0], nullptr, 4096, &window, NCCL_WIN_DEFAULT));
    EXPECT_EQ(window, nullptr);
    EXPECT_NCCL(ncclCommWindowRegister(world[0], nullptr, 0, nullptr, NCCL_WIN_DEFAULT));
    EXPECT_EQ(ncclCommWindowRegister(nullptr, nullptr, 4096, &window, NCCL_WIN_DEFAULT),
              +ncclInvalidArgument);
}

// Memory that nobody can map is carried through the arenas: the handle is as good as any.
TEST(NcclMemory, RegisteredThoughItCannotBeMapped) {
    const World world(1);
    int ordinary = 0;
    void* handle = nullptr;
    EXPECT_NCCL(ncclCommRegister(world[0], &ordinary, sizeof ordinary, &handle));
    EXPECT_NE(handle, nullptr);
    EXPECT_NCCL(ncclCommDeregister(world[0], handle));
}

TEST(NcclMemory, RegisteredInTheGroupThatMakesTheCommunicator) {
    ncclUniqueId id{};
    ASSERT_NCCL(ncclGetUniqueId(&id));
    std::vector<Memory> data;
    for (int rank = 0; rank < 2; ++rank) data.emplace_back(rank, std::size_t{4096});
    std::vector<ncclComm_t> comms(2);
    std::vector<void*> handles(2);
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 2; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        ASSERT_NCCL(sidestepNcclSetDevice(rank));
        EXPECT_NCCL(ncclCommInitRank(&comms[r], 2, id, rank));
        EXPECT_NCCL(ncclCommRegister(comms[r], data[r].data(), 4096, &handles[r]));
    }
    ASSERT_NCCL(ncclGroupEnd());
    for (std::size_t r = 0; r < 2; ++r) {
        EXPECT_NE(handles[r], nullptr);
        EXPECT_NCCL(ncclCommDeregister(comms[r], handles[r]));
        EXPECT_NCCL(ncclCommDestroy(comms[r]));
    }
}

// Freed before an operation on it has ended: it goes once the other rank has let go of it.
TEST(NcclMemory, FreedWhileTheOtherRankMayUseIt) {
    constexpr std::size_t large = 4'000'000;
    const World world(2);
    const auto small = world.memory(4096);
    const Memory theirs(1, large * sizeof(int));
    std::optional<Memory> own(std::in_place, 0, large * sizeof(int));
    const auto is_there = [address = own->data()] {
        return ::msync(address, large * sizeof(int), MS_ASYNC) == 0;
    };
    std::fill_n(reinterpret_cast<int*>(own->data()), large, 3);
    std::fill_n(reinterpret_cast<int*>(theirs.data()), large, 4);
    const auto sum = [&](int rank, void* data, std::size_t count) {
        EXPECT_NCCL(ncclAllReduce(data, data, count, ncclInt32, ncclSum, world[rank], nullptr));
    };
    const auto both_small = [&] {
        EXPECT_NCCL(
            world.together([&](int rank) { sum(rank, small[static_cast<std::size_t>(rank)].data(), 10); }));
    };
    std::thread first([&] {
        EXPECT_NCCL(ncclGroupStart());
        sum(0, small[0].data(), 10);
        sum(0, own->data(), large);
        EXPECT_NCCL(ncclGroupEnd());
    });
    sum(1, small[1].data(), 10);  // by its end both of the other rank's are enqueued, or about to be
    own.reset();
    EXPECT_TRUE(is_there());
    sum(1, theirs.data(), large);
    first.join();
    EXPECT_EQ(
        std::count(reinterpret_cast<int*>(theirs.data()), reinterpret_cast<int*>(theirs.data()) + large, 7),
        static_cast<std::ptrdiff_t>(large));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (is_there() && std::chrono::steady_clock::now() < until) both_small();
    EXPECT_FALSE(is_there());
}

// One thread computes while another allocates and frees on the same GPU.
TEST(NcclMemory, AllocatedWhileOperationsRun) {
    const World world(2);
    const auto data = world.memory(200'000);
    std::thread other([] {
        for (int turn = 0; turn < 50; ++turn) const Memory passing(turn % 2, std::size_t{100'000});
    });
    for (int turn = 0; turn < 10; ++turn) expect_sum(world, data);
    other.join();
}

}  // namespace
}  // namespace sidestep::nccl_test::memory
