// What goes wrong is said, by number and in words.
#include <string>
#include <thread>

#include "tests/nccl/world.hpp"

namespace sidestep::nccl_test::errors {
namespace {

TEST(NcclErrors, ArgumentsThatMakeNoSense) {
    const World world(2);
    const auto data = world.memory(64);
    void* own = data[0].data();
    EXPECT_EQ(ncclAllReduce(own, own, 1, ncclFloat32, ncclSum, nullptr, nullptr), +ncclInvalidArgument);
    EXPECT_EQ(last_error(), "ncclAllReduce: the communicator is NULL");
    EXPECT_EQ(ncclAllReduce(own, own, 1, ncclNumTypes, ncclSum, world[0], nullptr), +ncclInvalidArgument);
    EXPECT_EQ(last_error(), "ncclAllReduce: unknown data type 12");
    EXPECT_EQ(ncclAllReduce(own, own, 1, -1, ncclSum, world[0], nullptr), +ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(own, own, 1, ncclFloat32, ncclNumOps, world[0], nullptr), +ncclInvalidArgument);
    EXPECT_EQ(last_error(), "ncclAllReduce: unknown reduction operator 5");
    EXPECT_EQ(ncclAllReduce(own, own, 1, ncclFloat32, -1, world[0], nullptr), +ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(own, own, 1, ncclFloat32, 2, world[0], nullptr), +ncclInvalidArgument);
    EXPECT_EQ(last_error(), "ncclBroadcast: root 2 is out of range: there are 2 ranks");
    EXPECT_EQ(ncclReduce(own, own, 1, ncclFloat32, ncclSum, -1, world[0], nullptr), +ncclInvalidArgument);
    EXPECT_EQ(ncclSend(own, 1, ncclFloat32, 7, world[0], nullptr), +ncclInvalidArgument);
    EXPECT_EQ(last_error(), "ncclSend: peer 7 is out of range: there are 2 ranks");
    int number = 0;
    EXPECT_EQ(ncclCommCount(nullptr, &number), +ncclInvalidArgument);
    EXPECT_EQ(ncclCommCount(world[0], nullptr), +ncclInvalidArgument);
    EXPECT_EQ(ncclGetVersion(nullptr), +ncclInvalidArgument);
    EXPECT_EQ(ncclGetUniqueId(nullptr), +ncclInvalidArgument);
    long garbage[16] = {};
    EXPECT_EQ(ncclCommCount(reinterpret_cast<ncclComm_t>(garbage), &number), +ncclInvalidArgument);
    EXPECT_EQ(last_error(), "ncclCommCount: not a communicator created by this library");
    // The communicator is as good as new.
    ncclResult_t state = ncclInternalError;
    EXPECT_NCCL(ncclCommGetAsyncError(world[0], &state));
    EXPECT_EQ(state, +ncclSuccess);
}

TEST(NcclErrors, RanksAndIdsThatMakeNoSense) {
    ncclUniqueId id{};
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 1, id, 0), +ncclInvalidArgument);
    EXPECT_NE(last_error().find("not made by this library's ncclGetUniqueId"), std::string::npos)
        << last_error();
    ASSERT_NCCL(ncclGetUniqueId(&id));
    EXPECT_EQ(ncclCommInitRank(nullptr, 1, id, 0), +ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRank(&comm, 0, id, 0), +ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), +ncclInvalidArgument);
    EXPECT_EQ(last_error(), "ncclCommInitRank: rank 2 is out of range: there are 2 ranks");
    EXPECT_EQ(ncclCommInitRankScalable(&comm, 2, 0, 3, &id, nullptr), +ncclInvalidArgument);
    EXPECT_EQ(sidestepNcclSetDevice(8), +ncclInvalidArgument);
}

TEST(NcclErrors, MemoryThatIsNone) {
    const World world(2);
    EXPECT_EQ(ncclMemAlloc(nullptr, 1), +ncclInvalidArgument);
    void* memory = &memory;
    EXPECT_NCCL(ncclMemAlloc(&memory, 0));
    EXPECT_EQ(memory, nullptr);
    EXPECT_NCCL(ncclMemFree(nullptr));
    int ordinary = 0;
    EXPECT_EQ(ncclMemFree(&ordinary), +ncclInvalidArgument);
    EXPECT_EQ(ncclMemAlloc(&memory, std::size_t{1} << 60), +ncclUnhandledCudaError);
    EXPECT_NE(last_error().find("ncclMemAlloc: "), std::string::npos);
    // Of the host, where a GPU's is needed.
    std::vector<int> large(1'000'000);
    EXPECT_EQ(world.together([&](int rank) {
        EXPECT_NCCL(ncclAllReduce(large.data(), large.data(), large.size(), ncclInt32, ncclSum, world[rank],
                                  nullptr));
    }),
              +ncclInvalidArgument);
    EXPECT_NE(last_error().find("ncclGroupEnd: "), std::string::npos) << last_error();
}

TEST(NcclErrors, AGroupAnswersForWhatWasCalledInIt) {
    const World world(2);
    const auto data = world.memory(64);
    EXPECT_EQ(world.together([&](int rank) {
        void* own = data[static_cast<std::size_t>(rank)].data();
        EXPECT_EQ(ncclAllReduce(own, own, 1, rank == 0 ? +ncclFloat32 : 99, ncclSum, world[rank], nullptr),
                  rank == 0 ? +ncclSuccess : +ncclInvalidArgument);
    }),
              +ncclInvalidArgument);
    EXPECT_EQ(last_error(), "ncclGroupEnd: unknown data type 99");
    // Nothing of it has run, and the next group starts afresh.
    ASSERT_NCCL(world.together([&](int rank) {
        void* own = data[static_cast<std::size_t>(rank)].data();
        EXPECT_NCCL(ncclAllReduce(own, own, 1, ncclFloat32, ncclSum, world[rank], nullptr));
    }));
    EXPECT_EQ(ncclGroupEnd(), +ncclInvalidUsage);
    // The same where a communicator was to be made.
    ncclUniqueId id{};
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclCommInitRank(&comm, 1, id, 0));
    EXPECT_EQ(ncclCommInitRank(nullptr, 1, id, 0), +ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), +ncclInvalidArgument);
    EXPECT_EQ(comm, nullptr);
}

TEST(NcclErrors, ReductionsOfOtherTypesAndCommunicators) {
    const World world(2);
    const auto data = world.memory(64);
    float two = 2;
    ncclRedOp_t op = 0;
    ASSERT_NCCL(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat32, ncclScalarHostImmediate, world[0]));
    void* own = data[0].data();
    EXPECT_EQ(ncclAllReduce(own, own, 1, ncclInt32, op, world[0], nullptr), +ncclInvalidArgument);
    EXPECT_NE(last_error().find("was created for F32"), std::string::npos) << last_error();
    EXPECT_EQ(ncclAllReduce(own, own, 1, ncclFloat32, op, world[1], nullptr), +ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpDestroy(op, world[1]), +ncclInvalidArgument);
    EXPECT_NCCL(ncclRedOpDestroy(op, world[0]));
    EXPECT_EQ(ncclRedOpDestroy(op, world[0]), +ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpDestroy(ncclSum, world[0]), +ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpCreatePreMulSum(&op, nullptr, ncclFloat32, ncclScalarHostImmediate, world[0]),
              +ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpCreatePreMulSum(&op, &two, ncclFloat32, 2, world[0]), +ncclInvalidArgument);
}

TEST(NcclErrors, ARankThatNeverJoins) {
    const Timeout timeout("1");
    ncclUniqueId id{};
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(sidestepNcclSetDevice(0));
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 0), +ncclRemoteError);
    EXPECT_EQ(comm, nullptr);
    EXPECT_NE(last_error().find("ncclCommInitRank: "), std::string::npos);
    EXPECT_NE(last_error().find("1"), std::string::npos) << last_error();
}

TEST(NcclErrors, ARankThatNeverCalls) {
    const Timeout timeout("1");
    const World world(2);
    const auto data = world.memory(400);
    void* own = data[0].data();
    EXPECT_EQ(ncclAllReduce(own, own, 100, ncclFloat32, ncclSum, world[0], nullptr), +ncclRemoteError);
    EXPECT_NE(last_error().find("rank 1"), std::string::npos) << last_error();
    ncclResult_t state = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(world[0], &state));
    EXPECT_EQ(state, +ncclRemoteError);
    EXPECT_NE(last_error(world[0]).find("rank 1"), std::string::npos) << last_error(world[0]);
    // A call that would have nothing to do answers the failure too.
    EXPECT_EQ(ncclAllReduce(own, own, 0, ncclFloat32, ncclSum, world[0], nullptr), +ncclRemoteError);
    EXPECT_NE(last_error().find("rank 1"), std::string::npos) << last_error();
    // The message is that of the process for a thread without one of its own.
    std::string elsewhere;
    std::thread([&] { elsewhere = last_error(); }).join();
    EXPECT_NE(elsewhere.find("rank 1"), std::string::npos) << elsewhere;
}

TEST(NcclErrors, RanksThatCallDifferentThings) {
    const World world(2);
    const auto data = world.memory(4000);
    EXPECT_EQ(world.together([&](int rank) {
        void* own = data[static_cast<std::size_t>(rank)].data();
        EXPECT_NCCL(
            ncclAllReduce(own, own, rank == 0 ? 100 : 200, ncclFloat32, ncclSum, world[rank], nullptr));
    }),
              +ncclInvalidUsage);
    const std::string words = last_error(world[0]);
    EXPECT_NE(words.find("100"), std::string::npos) << words;
    EXPECT_NE(words.find("200"), std::string::npos) << words;
}

TEST(NcclErrors, WordsForEveryNumber) {
    for (ncclResult_t result = 0; result < ncclNumResults; ++result)
        EXPECT_GT(std::string(ncclGetErrorString(result)).size(), 5u);
    EXPECT_STREQ(ncclGetErrorString(99), "unknown result code");
}

TEST(NcclErrors, CommunicationFromWithinKernelsIsRefused) {
    const World world(2);
    char storage[256] = {};
    const ncclTeam_t team = ncclTeamWorld(world[1]);
    EXPECT_EQ(ncclDevCommCreate(world[0], storage, storage), +ncclInvalidUsage);
    EXPECT_EQ(
        last_error(),
        "ncclDevCommCreate: communication from within kernels (NCCL's device API) is not supported by this "
        "library. the program needs NVIDIA's libnccl.so.2 for it");
    EXPECT_EQ(ncclDevCommDestroy(world[0], storage), +ncclInvalidUsage);
    EXPECT_EQ(ncclLsaBarrierCreateRequirement(team, 1, storage, storage), +ncclInvalidUsage);
    EXPECT_EQ(ncclGinBarrierCreateRequirement(world[0], team, 1, storage, storage), +ncclInvalidUsage);
    EXPECT_EQ(ncclLLA2ACreateRequirement(1, 1, storage, storage), +ncclInvalidUsage);
    EXPECT_EQ(ncclLLA2ACalcSlots(16, 4), 0);
    // The subsets of ranks are plain numbers: all ranks share their memory.
    EXPECT_EQ(team.nRanks, 2);
    EXPECT_EQ(team.rank, 1);
    EXPECT_EQ(ncclTeamLsa(world[0]).nRanks, 2);
    EXPECT_EQ(ncclTeamRail(world[0]).nRanks, 1);
    EXPECT_EQ(ncclTeamRankToWorld(world[1], team, 0), 0);
    EXPECT_EQ(ncclTeamRankToLsa(world[1], ncclTeamRail(world[1]), 0), 1);
    EXPECT_EQ(ncclTeamWorld(nullptr).nRanks, 0);
    EXPECT_EQ(ncclTeamRankToWorld(nullptr, team, 0), -1);
}

}  // namespace
}  // namespace sidestep::nccl_test::errors
