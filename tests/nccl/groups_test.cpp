// Groups of which a part cannot run: nothing is left waiting for it.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "tests/nccl/world.hpp"

namespace sidestep::nccl_test::groups {
namespace {

constexpr auto type = ncclInt32;
constexpr std::size_t count = 1'000'000;

// Two ranks that wait for each other much longer than a test may take.
class NcclGroups : public ::testing::Test {
protected:
    void SetUp() override { ASSERT_NCCL(ncclCommInitAll(comms.data(), 2, nullptr)); }

    // Destroys them, after a group that has failed.
    void expect_quick_end() {
        destroy(comms);
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(120));
    }

    const Timeout timeout{"600"};
    const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
    std::vector<ncclComm_t> comms = std::vector<ncclComm_t>(2);
    Memory memory{0, count * sizeof(int)}, other{1, count * sizeof(int)};
    std::vector<int> of_the_host = std::vector<int>(count);
};

// Only enqueuing shows that memory is not the GPU's. By then the other rank's part cannot be taken back.
TEST_F(NcclGroups, MemoryOfTheHostOnTheSecondRank) {
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(memory.data(), memory.data(), count, type, ncclSum, comms[0], nullptr));
    EXPECT_NCCL(
        ncclAllReduce(of_the_host.data(), of_the_host.data(), count, type, ncclSum, comms[1], nullptr));
    EXPECT_EQ(ncclGroupEnd(), +ncclInvalidArgument);
    const std::string words = last_error();
    for (ncclComm_t comm : comms) {
        EXPECT_EQ(settled(comm), +ncclRemoteError);
        // Why it ended is what the end of the group has answered.
        EXPECT_NE(last_error(comm).find(words.substr(std::string("ncclGroupEnd: ").size())),
                  std::string::npos)
            << last_error(comm) << " and " << words;
    }
    expect_quick_end();
}

TEST_F(NcclGroups, AReceiveIntoMemoryOfTheHost) {
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(memory.data(), count, type, 1, comms[0], nullptr));
    EXPECT_NCCL(ncclRecv(of_the_host.data(), count, type, 0, comms[1], nullptr));
    EXPECT_EQ(ncclGroupEnd(), +ncclInvalidArgument);
    expect_quick_end();
}

// What a call shows by itself is refused before anything is enqueued, and the communicators go on.
TEST_F(NcclGroups, CallsThatMakeNoSenseKeepAllOthersFromRunning) {
    constexpr std::size_t nonsense = std::size_t{1} << 62;
    using Calls = std::function<ncclResult_t()>;
    const auto sum = [&](int rank, void* data, std::size_t elements) {
        return ncclAllReduce(data, data, elements, type, ncclSum, comms[static_cast<std::size_t>(rank)],
                             nullptr);
    };
    const std::vector<std::pair<Calls, Calls>> groups = {
        {[&] { return sum(0, memory.data(), count); }, [&] { return sum(1, other.data(), nonsense); }},
        {[&] { return sum(0, memory.data(), count); }, [&] { return sum(1, nullptr, count); }},
        {[&] { return ncclSend(memory.data(), count, type, 1, comms[0], nullptr); },
         [&] { return ncclRecv(memory.data(), nonsense, type, 1, comms[0], nullptr); }},
        {[&] { return ncclSend(memory.data(), count, type, 1, comms[0], nullptr); },
         [&] { return ncclRecv(nullptr, count, type, 0, comms[1], nullptr); }}};
    for (const auto& [good, bad] : groups) {
        ASSERT_NCCL(ncclGroupStart());
        EXPECT_NCCL(good());
        EXPECT_EQ(bad(), +ncclInvalidArgument);
        EXPECT_EQ(ncclGroupEnd(), +ncclInvalidArgument);
        expect_sum(comms, {0, 1});
    }
    expect_quick_end();
}

// Emulated GPUs have no streams, so pairs may name several.
TEST_F(NcclGroups, PairsOfSeveralStreams) {
    const auto stream = [](std::uintptr_t number) { return reinterpret_cast<cudaStream_t>(number); };
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(memory.data(), 100, type, 1, comms[0], stream(16)));
    EXPECT_NCCL(ncclRecv(memory.at(4096), 100, type, 1, comms[0], stream(32)));
    EXPECT_NCCL(ncclRecv(other.data(), 100, type, 0, comms[1], stream(48)));
    EXPECT_NCCL(ncclSend(other.at(4096), 100, type, 0, comms[1], stream(64)));
    EXPECT_NCCL(ncclGroupEnd());
    expect_quick_end();
}

// More than share a launch, of two kinds, in and out of place; the other rank names other streams.
TEST_F(NcclGroups, ManySmallCollectives) {
    constexpr std::size_t each = 300, calls = 40;
    const auto at = [](Memory& of, std::size_t call) {
        return reinterpret_cast<int*>(of.at(call * 4 * each * sizeof(int)));
    };
    for (std::size_t call = 0; call < calls; ++call) {
        std::fill_n(at(memory, call), each, static_cast<int>(call));
        std::fill_n(at(other, call), each, 1000);
    }
    ASSERT_NCCL(ncclGroupStart());
    for (std::size_t call = 0; call < calls; ++call)
        for (int rank = 0; rank < 2; ++rank) {
            int* const own = at(rank == 0 ? memory : other, call);
            const auto stream =
                reinterpret_cast<cudaStream_t>(static_cast<std::uintptr_t>(16 * rank * (call % 2)));
            if (call < 25)
                EXPECT_NCCL(ncclAllReduce(own, own, each, type, ncclSum, comms[rank], stream));
            else
                EXPECT_NCCL(ncclAllGather(own, own + each, each, type, comms[rank], stream));
        }
    ASSERT_NCCL(ncclGroupEnd());
    for (std::size_t call = 0; call < calls; ++call)
        for (Memory* of : {&memory, &other}) {
            const int* const own = at(*of, call);
            const int value = static_cast<int>(call);
            if (call < 25)
                EXPECT_EQ(std::count(own, own + each, value + 1000), each) << call;
            else
                EXPECT_TRUE(std::count(own + each, own + 2 * each, value) == each &&
                            std::count(own + 2 * each, own + 3 * each, 1000) == each)
                    << call;
        }
    expect_quick_end();
}

// Two ranks that do not block: what is called on them goes on in the background.
class NcclGroupsThatDoNotBlock : public ::testing::Test {
protected:
    void SetUp() override {
        config.blocking = 0;
        const ncclUniqueId id = new_id();
        ASSERT_NCCL(ncclGroupStart());
        for (int rank = 0; rank < 2; ++rank) {
            ASSERT_NCCL(sidestepNcclSetDevice(rank));
            EXPECT_NCCL(ncclCommInitRankConfig(&comms[static_cast<std::size_t>(rank)], 2, id, rank, &config));
        }
        ASSERT_EQ(ncclGroupEnd(), +ncclInProgress);
        for (ncclComm_t comm : comms) ASSERT_EQ(settled(comm), +ncclSuccess) << last_error(comm);
    }
    void TearDown() override { destroy(comms); }

    static int ranks_of(ncclComm_t comm) {
        int ranks = 0;
        EXPECT_NCCL(ncclCommCount(comm, &ranks));
        return ranks;
    }

    ncclConfig_t config = default_config();
    std::vector<ncclComm_t> comms = std::vector<ncclComm_t>(2);
};

TEST_F(NcclGroupsThatDoNotBlock, WhatNeverRanLeavesTheCommunicatorAsItWas) {
    ncclComm_t child = nullptr;
    int excluded[] = {1};
    const std::vector<std::function<ncclResult_t()>> calls = {
        [&] { return ncclCommSplit(comms[0], 0, 0, &child, nullptr); },
        [&] { return ncclCommShrink(comms[0], excluded, 1, &child, nullptr, NCCL_SHRINK_DEFAULT); },
        [&] { return ncclCommFinalize(comms[0]); }};
    for (std::size_t call = 0; call < calls.size(); ++call)
        for (const bool simulated : {true, false}) {
            ASSERT_NCCL(ncclGroupStart());
            EXPECT_NCCL(calls[call]()) << call;
            if (simulated) {
                EXPECT_NCCL(ncclGroupSimulateEnd(nullptr));
            } else {
                EXPECT_EQ(ncclCommSplit(comms[1], -7, 0, &child, nullptr), +ncclInvalidArgument);
                EXPECT_EQ(ncclGroupEnd(), +ncclInvalidArgument);
            }
            ncclResult_t state = ncclInProgress;
            EXPECT_NCCL(ncclCommGetAsyncError(comms[0], &state));
            EXPECT_EQ(state, +ncclSuccess) << call << last_error(comms[0]);
            expect_sum(comms, {0, 1});
        }
}

// There is no end of this group at which it would be there.
TEST_F(NcclGroupsThatDoNotBlock, MemoryOfACommunicatorThatIsMadeElsewhereAndNotReady) {
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, new_id(), 0, &config), +ncclInProgress);
    const Memory memory(0, std::size_t{4096});
    void* handle = nullptr;
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_EQ(ncclCommRegister(comm, memory.data(), 4096, &handle), +ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), +ncclInvalidArgument);
    EXPECT_NE(last_error().find("not ready"), std::string::npos) << last_error();
    EXPECT_EQ(handle, nullptr);
    EXPECT_NCCL(ncclCommAbort(comm));
}

// A communicator is busy from the end of the group on, not from the first call in it.
TEST_F(NcclGroupsThatDoNotBlock, SeveralSplitsOfOneCommunicator) {
    std::vector<ncclComm_t> pair(2), alone(2);
    ASSERT_NCCL(ncclGroupStart());
    for (std::size_t r = 0; r < 2; ++r) {
        const int rank = static_cast<int>(r);
        EXPECT_NCCL(ncclCommSplit(comms[r], 0, -rank, &pair[r], nullptr));
        EXPECT_NCCL(ncclCommSplit(comms[r], rank, 0, &alone[r], nullptr));
    }
    EXPECT_EQ(ncclGroupEnd(), +ncclInProgress);
    for (std::size_t r = 0; r < 2; ++r) {
        ASSERT_EQ(settled(comms[r]), +ncclSuccess) << last_error(comms[r]);
        EXPECT_EQ(ranks_of(pair[r]), 2);
        EXPECT_EQ(ranks_of(alone[r]), 1);
        expect_sum({alone[r]}, {static_cast<int>(r)});
    }
    expect_sum({pair[1], pair[0]}, {1, 0});
    destroy(pair);
    destroy(alone);
}

// A split waits for those of the other ranks, perhaps for long; an operation beside it does not.
TEST_F(NcclGroupsThatDoNotBlock, AnOperationBesideASplitThatTheOtherRankComesToLater) {
    ncclComm_t alone = nullptr;
    ASSERT_NCCL(sidestepNcclSetDevice(0));
    ASSERT_NCCL(ncclCommInitRank(&alone, 1, new_id(), 0));
    const Memory memory(0, std::size_t{4096}), other(1, std::size_t{4096});
    std::vector<ncclComm_t> children(2);
    std::thread later([&] {
        EXPECT_NCCL(ncclRecv(other.data(), 100, type, 0, comms[1], nullptr));
        EXPECT_EQ(ncclCommSplit(comms[1], 0, 1, &children[1], nullptr), +ncclInProgress);
    });
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclCommSplit(comms[0], 0, 0, &children[0], nullptr));
    // The split has time to begin before the send is enqueued.
    for (int call = 0; call < 20'000; ++call)
        EXPECT_NCCL(ncclAllReduce(memory.data(), memory.data(), 100, type, ncclSum, alone, nullptr));
    EXPECT_NCCL(ncclSend(memory.data(), 100, type, 1, comms[0], nullptr));
    EXPECT_EQ(ncclGroupEnd(), +ncclInProgress) << last_error();
    later.join();
    for (ncclComm_t comm : comms) EXPECT_EQ(settled(comm), +ncclSuccess) << last_error(comm);
    expect_sum(children, {0, 1});
    destroy(children);
    destroy({alone});
}

}  // namespace
}  // namespace sidestep::nccl_test::groups
