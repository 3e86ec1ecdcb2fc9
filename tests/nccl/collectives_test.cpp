// Every operation of NCCL's interface, on four emulated GPUs that one thread drives.
#include <algorithm>
#include <cstring>

#include "tests/nccl/world.hpp"

namespace sidestep::nccl_test::collectives {
namespace {

constexpr int n = 4;

// Small numbers whose sums, products and quarters every type holds exactly.
double value(int rank, std::size_t i) {
    return static_cast<double>((static_cast<std::size_t>(rank) + i) % 3);
}

std::vector<double> values(int rank, std::size_t count) {
    std::vector<double> all(count);
    for (std::size_t i = 0; i < count; ++i) all[i] = value(rank, i);
    return all;
}

double combined(ncclRedOp_t op, ncclDataType_t type, std::size_t i) {
    double result = value(0, i);
    for (int rank = 1; rank < n; ++rank) {
        const double other = value(rank, i);
        switch (op) {
            case ncclProd:
                result *= other;
                break;
            case ncclMax:
                result = std::max(result, other);
                break;
            case ncclMin:
                result = std::min(result, other);
                break;
            default:
                result += other;
        }
    }
    if (op != ncclAvg) return result;
    return type < ncclFloat16 ? static_cast<double>(static_cast<long>(result) / n) : result / n;
}

std::vector<double> expected(ncclRedOp_t op, ncclDataType_t type, std::size_t from, std::size_t count) {
    std::vector<double> all(count);
    for (std::size_t i = 0; i < count; ++i) all[i] = combined(op, type, from + i);
    return all;
}

class NcclCollectives : public ::testing::Test {
protected:
    World world{n};

    std::vector<Memory> filled(ncclDataType_t type, std::size_t count) const {
        std::vector<Memory> all;
        for (int rank = 0; rank < n; ++rank) all.emplace_back(rank, encode(type, values(rank, count)));
        return all;
    }
};

TEST_F(NcclCollectives, AllReduceOfEveryTypeAndOperation) {
    constexpr std::size_t count = 1003;
    for (ncclDataType_t type = 0; type < ncclNumTypes; ++type)
        for (ncclRedOp_t op = 0; op < ncclNumOps; ++op) {
            const auto send = filled(type, count);
            const auto recv = world.memory(count * size_of(type));
            ASSERT_NCCL(world.together([&](int rank) {
                const auto r = static_cast<std::size_t>(rank);
                EXPECT_NCCL(
                    ncclAllReduce(send[r].data(), recv[r].data(), count, type, op, world[rank], nullptr));
            }));
            for (const Memory& result : recv)
                EXPECT_EQ(decode(type, result.data(), count), expected(op, type, 0, count))
                    << name_of(type) << " " << op;
        }
}

TEST_F(NcclCollectives, AllReduceInPlaceSmallAndLarge) {
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{7}, std::size_t{40'000}, std::size_t{1'000'003}}) {
        const auto data = filled(ncclFloat32, count);
        ASSERT_NCCL(world.together([&](int rank) {
            void* own = data[static_cast<std::size_t>(rank)].data();
            EXPECT_NCCL(ncclAllReduce(own, own, count, ncclFloat32, ncclSum, world[rank], nullptr));
        }));
        for (const Memory& result : data)
            EXPECT_EQ(decode(ncclFloat32, result.data(), count), expected(ncclSum, ncclFloat32, 0, count))
                << count;
    }
}

TEST_F(NcclCollectives, NothingToDoIsDone) {
    const auto data = filled(ncclFloat32, 4);
    ASSERT_NCCL(world.together([&](int rank) {
        void* own = data[static_cast<std::size_t>(rank)].data();
        EXPECT_NCCL(ncclAllReduce(own, own, 0, ncclFloat32, ncclSum, world[rank], nullptr));
        EXPECT_NCCL(ncclAllGather(nullptr, nullptr, 0, ncclInt8, world[rank], nullptr));
        EXPECT_NCCL(ncclBroadcast(nullptr, nullptr, 0, ncclInt8, 1, world[rank], nullptr));
    }));
    // Not even a partner is needed.
    EXPECT_NCCL(ncclReduce(nullptr, nullptr, 0, ncclInt8, ncclSum, 0, world[2], nullptr));
    EXPECT_NCCL(ncclSend(nullptr, 0, ncclInt8, 1, world[2], nullptr));
    EXPECT_EQ(decode(ncclFloat32, data[3].data(), 4), values(3, 4));
}

TEST_F(NcclCollectives, BroadcastFromEachRoot) {
    constexpr std::size_t count = 5001;
    for (int root = 0; root < n; ++root) {
        const auto send = filled(ncclBfloat16, count);
        const auto recv = world.memory(count * 2);
        ASSERT_NCCL(world.together([&](int rank) {
            const auto r = static_cast<std::size_t>(rank);
            const void* from = rank == root ? send[r].data() : nullptr;
            EXPECT_NCCL(ncclBroadcast(from, recv[r].data(), count, ncclBfloat16, root, world[rank], nullptr));
        }));
        for (const Memory& result : recv)
            EXPECT_EQ(decode(ncclBfloat16, result.data(), count), values(root, count));
        // In place, under its old name.
        ASSERT_NCCL(world.together([&](int rank) {
            EXPECT_NCCL(ncclBcast(send[static_cast<std::size_t>(rank)].data(), count, ncclBfloat16, root,
                                  world[rank], nullptr));
        }));
        for (const Memory& result : send)
            EXPECT_EQ(decode(ncclBfloat16, result.data(), count), values(root, count));
    }
}

TEST_F(NcclCollectives, ReduceReachesTheRootAlone) {
    constexpr std::size_t count = 3000;
    const auto send = filled(ncclInt32, count);
    const auto recv = world.memory(count * 4);
    ASSERT_NCCL(world.together([&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        void* into = rank == 2 ? recv[r].data() : nullptr;
        EXPECT_NCCL(ncclReduce(send[r].data(), into, count, ncclInt32, ncclSum, 2, world[rank], nullptr));
    }));
    EXPECT_EQ(decode(ncclInt32, recv[2].data(), count), expected(ncclSum, ncclInt32, 0, count));
    EXPECT_EQ(recv[1].data()[0], std::byte{0x5a});
}

// NCCL's documentation says of these that they are used at the root only.
TEST_F(NcclCollectives, WhatOtherRanksNameInPlaceOfTheRootsMemoryIsIgnored) {
    std::byte host{};
    for (const std::size_t count : {std::size_t{4096}, std::size_t{4} << 20}) {
        const auto small = world.memory(count), large = world.memory(n * count);
        const auto own = [&](const std::vector<Memory>& of, int rank) -> void* {
            return of[static_cast<std::size_t>(rank)].data();
        };
        const auto only = [&](int root, const std::vector<Memory>& of, int rank) {
            return rank == root ? own(of, rank) : &host;
        };
        const auto all_are = [&](const std::byte* at, std::size_t bytes, int value) {
            const std::vector<std::byte> wanted(bytes, std::byte(value));
            return std::memcmp(at, wanted.data(), bytes) == 0;
        };
        for (int rank = 0; rank < n; ++rank) std::memset(own(small, rank), rank + 1, count);
        ASSERT_NCCL(world.together([&](int rank) {
            EXPECT_NCCL(ncclReduce(own(small, rank), only(2, large, rank), count, ncclUint8, ncclSum, 2,
                                   world[rank], nullptr));
        }));
        EXPECT_TRUE(all_are(large[2].data(), count, 1 + 2 + 3 + 4)) << count;
        ASSERT_NCCL(world.together([&](int rank) {
            EXPECT_NCCL(ncclGather(own(small, rank), only(1, large, rank), count, ncclUint8, 1, world[rank],
                                   nullptr));
        }));
        for (int rank = 0; rank < n; ++rank)
            EXPECT_TRUE(all_are(large[1].at(static_cast<std::size_t>(rank) * count), count, rank + 1))
                << count;
        ASSERT_NCCL(world.together([&](int rank) {
            EXPECT_NCCL(ncclScatter(only(1, large, rank), own(small, rank), count, ncclUint8, 1, world[rank],
                                    nullptr));
        }));
        EXPECT_TRUE(all_are(small[3].data(), count, 4)) << count;
        ASSERT_NCCL(world.together([&](int rank) {
            EXPECT_NCCL(ncclBroadcast(only(0, small, rank), own(large, rank), count, ncclUint8, 0,
                                      world[rank], nullptr));
        }));
        for (const Memory& one : large) EXPECT_TRUE(all_are(one.data(), count, 1)) << count;
    }
}

TEST_F(NcclCollectives, GatherInItsThreeForms) {
    constexpr std::size_t count = 777;
    std::vector<double> all;
    for (int rank = 0; rank < n; ++rank) {
        const auto own = values(rank, count);
        all.insert(all.end(), own.begin(), own.end());
    }
    const auto send = filled(ncclInt64, count);
    const auto recv = world.memory(n * count * 8);
    ASSERT_NCCL(world.together([&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        EXPECT_NCCL(ncclAllGather(send[r].data(), recv[r].data(), count, ncclInt64, world[rank], nullptr));
    }));
    for (const Memory& result : recv) EXPECT_EQ(decode(ncclInt64, result.data(), n * count), all);
    // In place: each rank's part lies where it goes to.
    const auto in_place = world.memory(n * count * 8);
    for (std::size_t r = 0; r < n; ++r) std::memcpy(in_place[r].at(r * count * 8), send[r].data(), count * 8);
    ASSERT_NCCL(world.together([&](int rank) {
        const Memory& own = in_place[static_cast<std::size_t>(rank)];
        const std::size_t offset = static_cast<std::size_t>(rank) * count * 8;
        EXPECT_NCCL(ncclAllGather(own.at(offset), own.data(), count, ncclInt64, world[rank], nullptr));
    }));
    for (const Memory& result : in_place) EXPECT_EQ(decode(ncclInt64, result.data(), n * count), all);

    const auto at_root = world.memory(n * count * 8);
    ASSERT_NCCL(world.together([&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        void* into = rank == 1 ? at_root[r].data() : nullptr;
        EXPECT_NCCL(ncclGather(send[r].data(), into, count, ncclInt64, 1, world[rank], nullptr));
    }));
    EXPECT_EQ(decode(ncclInt64, at_root[1].data(), n * count), all);
}

TEST_F(NcclCollectives, ScatterAndReduceScatter) {
    constexpr std::size_t count = 901;
    const auto send = filled(ncclFloat64, n * count);
    const auto recv = world.memory(count * 8);
    ASSERT_NCCL(world.together([&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        EXPECT_NCCL(ncclReduceScatter(send[r].data(), recv[r].data(), count, ncclFloat64, ncclSum,
                                      world[rank], nullptr));
    }));
    for (std::size_t r = 0; r < n; ++r)
        EXPECT_EQ(decode(ncclFloat64, recv[r].data(), count),
                  expected(ncclSum, ncclFloat64, r * count, count));

    ASSERT_NCCL(world.together([&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        const void* from = rank == 3 ? send[r].data() : nullptr;
        EXPECT_NCCL(ncclScatter(from, recv[r].data(), count, ncclFloat64, 3, world[rank], nullptr));
    }));
    const auto whole = values(3, n * count);
    for (std::size_t r = 0; r < n; ++r) {
        const auto at = whole.begin() + static_cast<std::ptrdiff_t>(r * count);
        EXPECT_EQ(decode(ncclFloat64, recv[r].data(), count), std::vector<double>(at, at + count));
    }
}

TEST_F(NcclCollectives, AllToAll) {
    constexpr std::size_t count = 1234;
    const auto send = filled(ncclUint8, n * count);
    const auto recv = world.memory(n * count);
    ASSERT_NCCL(world.together([&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        EXPECT_NCCL(ncclAlltoAll(send[r].data(), recv[r].data(), count, ncclUint8, world[rank], nullptr));
    }));
    for (std::size_t to = 0; to < n; ++to)
        for (std::size_t from = 0; from < n; ++from) {
            const auto whole = values(static_cast<int>(from), n * count);
            const auto at = whole.begin() + static_cast<std::ptrdiff_t>(to * count);
            EXPECT_EQ(decode(ncclUint8, recv[to].at(from * count), count),
                      std::vector<double>(at, at + count));
        }
}

// What PyTorch makes of an uneven all_to_all: sends and receives of one group, some of nothing.
TEST_F(NcclCollectives, SendsAndReceivesOfAGroup) {
    const auto count = [](int from, int to) {
        return static_cast<std::size_t>(from == to ? 0 : 100 * from + to);
    };
    const auto send = filled(ncclInt32, 4000);
    const auto recv = world.memory(n * 4000);
    ASSERT_NCCL(world.together([&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        for (int peer = 0; peer < n; ++peer) {
            const auto p = static_cast<std::size_t>(peer);
            EXPECT_NCCL(
                ncclSend(send[r].at(p * 4000), count(rank, peer), ncclInt32, peer, world[rank], nullptr));
            EXPECT_NCCL(
                ncclRecv(recv[r].at(p * 4000), count(peer, rank), ncclInt32, peer, world[rank], nullptr));
        }
    }));
    for (int to = 0; to < n; ++to)
        for (int from = 0; from < n; ++from) {
            const auto f = static_cast<std::size_t>(from);
            const std::byte* arrived = recv[static_cast<std::size_t>(to)].at(f * 4000);
            const std::byte* sent = send[f].at(static_cast<std::size_t>(to) * 4000);
            EXPECT_EQ(std::memcmp(arrived, sent, count(from, to) * 4), 0) << from << " to " << to;
            EXPECT_EQ(arrived[count(from, to) * 4], std::byte{0x5a}) << from << " to " << to;
        }
}

TEST_F(NcclCollectives, CollectivesBesideSendsInAnyOrder) {
    const auto data = filled(ncclFloat32, 100);
    const auto ring = world.memory(400);
    ASSERT_NCCL(world.together([&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        const auto sum = [&] {
            EXPECT_NCCL(ncclAllReduce(data[r].data(), data[r].data(), 100, ncclFloat32, ncclSum, world[rank],
                                      nullptr));
        };
        if (rank % 2 == 0) sum();
        EXPECT_NCCL(ncclRecv(ring[r].data(), 100, ncclFloat32, (rank + n - 1) % n, world[rank], nullptr));
        if (rank % 2 == 1) sum();
        EXPECT_NCCL(ncclSend(data[r].data(), 100, ncclFloat32, (rank + 1) % n, world[rank], nullptr));
    }));
    for (const Memory& result : ring)
        EXPECT_EQ(decode(ncclFloat32, result.data(), 100), expected(ncclSum, ncclFloat32, 0, 100));
}

TEST_F(NcclCollectives, SumsOfScaledInputs) {
    constexpr std::size_t count = 600;
    // Rank 0 doubles what it gives, the others leave it as it is.
    for (ncclDataType_t type = 0; type < ncclNumTypes; ++type)
        for (const bool on_device : {false, true}) {
            const auto data = filled(type, count);
            std::vector<Memory> scalars;
            for (int rank = 0; rank < n; ++rank)
                scalars.emplace_back(rank, encode(type, {rank == 0 ? 2.0 : 1.0}));
            ASSERT_NCCL(world.together([&](int rank) {
                const auto r = static_cast<std::size_t>(rank);
                ncclRedOp_t op = ncclSum;
                auto given = encode(type, {rank == 0 ? 2.0 : 1.0});
                void* scalar = on_device ? scalars[r].data() : given.data();
                const auto residence = on_device ? ncclScalarDevice : ncclScalarHostImmediate;
                ASSERT_NCCL(ncclRedOpCreatePreMulSum(&op, scalar, type, residence, world[rank]));
                EXPECT_GE(op, +ncclNumOps);
                EXPECT_NCCL(
                    ncclAllReduce(data[r].data(), data[r].data(), count, type, op, world[rank], nullptr));
                // Before the group's end, as PyTorch does.
                EXPECT_NCCL(ncclRedOpDestroy(op, world[rank]));
                std::fill(given.begin(), given.end(), std::byte{0xff});
            }));
            auto wanted = expected(ncclSum, type, 0, count);
            for (std::size_t i = 0; i < count; ++i) wanted[i] += value(0, i);
            for (const Memory& result : data)
                EXPECT_EQ(decode(type, result.data(), count), wanted)
                    << name_of(type) << (on_device ? " on the device" : "");
        }
}

// As nccl-tests: many operations in one group, at another offset each time.
TEST_F(NcclCollectives, ManyOperationsOfOneGroupAtMovingOffsets) {
    constexpr std::size_t count = 500;
    constexpr std::size_t turns = 40;
    const auto send = filled(ncclFloat32, count + turns);
    const auto recv = world.memory(turns * count * 4);
    ASSERT_NCCL(ncclGroupStart());
    for (std::size_t turn = 0; turn < turns; ++turn)
        ASSERT_NCCL(world.together([&](int rank) {
            const auto r = static_cast<std::size_t>(rank);
            EXPECT_NCCL(ncclAllReduce(send[r].at(turn * 4), recv[r].at(turn * count * 4), count, ncclFloat32,
                                      ncclSum, world[rank], nullptr));
        }));
    // The inner groups ended, but nothing has run yet.
    EXPECT_EQ(recv[0].data()[0], std::byte{0x5a});
    ASSERT_NCCL(ncclGroupEnd());
    for (std::size_t turn = 0; turn < turns; ++turn)
        for (const Memory& result : recv)
            EXPECT_EQ(decode(ncclFloat32, result.at(turn * count * 4), count),
                      expected(ncclSum, ncclFloat32, turn, count))
                << turn;
}

TEST_F(NcclCollectives, ASimulatedGroupRunsNothing) {
    const auto data = filled(ncclFloat32, 1000);
    ncclSimInfo_t info{sizeof(ncclSimInfo_t), NCCL_SIM_INFO_MAGIC, NCCL_VERSION_CODE, -1.0f};
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < n; ++rank) {
        void* own = data[static_cast<std::size_t>(rank)].data();
        EXPECT_NCCL(ncclAllReduce(own, own, 1000, ncclFloat32, ncclSum, world[rank], nullptr));
    }
    ASSERT_NCCL(ncclGroupSimulateEnd(&info));
    EXPECT_GT(info.estimatedTime, 0.0f);
    EXPECT_EQ(decode(ncclFloat32, data[1].data(), 1000), values(1, 1000));
    EXPECT_EQ(ncclGroupEnd(), +ncclInvalidUsage);
}

}  // namespace
}  // namespace sidestep::nccl_test::collectives
