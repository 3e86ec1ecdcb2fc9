// Every function with what makes no sense: null pointers, communicators that are none, are gone or have
// ended.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "tests/nccl/world.hpp"

namespace sidestep::nccl_test::arguments {
namespace {

constexpr auto type = ncclInt32;

using Calls = std::vector<std::pair<std::string, std::function<ncclResult_t(ncclComm_t)>>>;

// Of one element at `own`, or of `count`.
Calls operations(void* own, std::size_t count = 1) {
    return {
        {"AllReduce",
         [=](ncclComm_t c) { return ncclAllReduce(own, own, count, type, ncclSum, c, nullptr); }},
        {"Broadcast", [=](ncclComm_t c) { return ncclBroadcast(own, own, count, type, 0, c, nullptr); }},
        {"Bcast", [=](ncclComm_t c) { return ncclBcast(own, count, type, 0, c, nullptr); }},
        {"Reduce", [=](ncclComm_t c) { return ncclReduce(own, own, count, type, ncclSum, 0, c, nullptr); }},
        {"AllGather", [=](ncclComm_t c) { return ncclAllGather(own, own, count, type, c, nullptr); }},
        {"ReduceScatter",
         [=](ncclComm_t c) { return ncclReduceScatter(own, own, count, type, ncclSum, c, nullptr); }},
        {"AlltoAll", [=](ncclComm_t c) { return ncclAlltoAll(own, own, count, type, c, nullptr); }},
        {"Gather", [=](ncclComm_t c) { return ncclGather(own, own, count, type, 0, c, nullptr); }},
        {"Scatter", [=](ncclComm_t c) { return ncclScatter(own, own, count, type, 0, c, nullptr); }},
        {"Send", [=](ncclComm_t c) { return ncclSend(own, count, type, 0, c, nullptr); }},
        {"Recv", [=](ncclComm_t c) { return ncclRecv(own, count, type, 0, c, nullptr); }}};
}

// What asks, registers, makes another one of it, or ends it. What is written to goes nowhere.
Calls other_calls(void* own) {
    static int number = 0;
    static void* pointer = nullptr;
    static ncclWindow_t window = nullptr;
    static ncclComm_t made = nullptr;
    static ncclRedOp_t op = 0;
    static ncclUniqueId id{};
    static uint64_t value = 0;
    static std::array<int, 1> excluded = {1};
    static ncclCommProperties_t properties{};
    properties.size = sizeof properties;
    properties.magic = NCCL_CONFIG_MAGIC;
    return {
        {"CommCount", [](ncclComm_t c) { return ncclCommCount(c, &number); }},
        {"CommCuDevice", [](ncclComm_t c) { return ncclCommCuDevice(c, &number); }},
        {"CommUserRank", [](ncclComm_t c) { return ncclCommUserRank(c, &number); }},
        {"CommGetAsyncError", [](ncclComm_t c) { return ncclCommGetAsyncError(c, &number); }},
        {"CommSplit", [](ncclComm_t c) { return ncclCommSplit(c, 0, 0, &made, nullptr); }},
        {"CommShrink", [](ncclComm_t c) { return ncclCommShrink(c, excluded.data(), 1, &made, nullptr, 0); }},
        {"CommRegister", [=](ncclComm_t c) { return ncclCommRegister(c, own, 4, &pointer); }},
        {"CommWindowRegister", [=](ncclComm_t c) { return ncclCommWindowRegister(c, own, 4, &window, 0); }},
        {"RedOpCreatePreMulSum",
         [=](ncclComm_t c) { return ncclRedOpCreatePreMulSum(&op, own, type, ncclScalarHostImmediate, c); }},
        {"RedOpDestroy", [](ncclComm_t c) { return ncclRedOpDestroy(ncclNumOps, c); }},
        {"CommGetUniqueId", [](ncclComm_t c) { return ncclCommGetUniqueId(c, &id); }},
        {"CommMemStats", [](ncclComm_t c) { return ncclCommMemStats(c, 0, &value); }},
        {"CommQueryProperties", [](ncclComm_t c) { return ncclCommQueryProperties(c, &properties); }},
        {"CommSuspend", [](ncclComm_t c) { return ncclCommSuspend(c, NCCL_SUSPEND_MEM); }},
        {"CommResume", [](ncclComm_t c) { return ncclCommResume(c); }},
        {"WinGetUserPtr", [](ncclComm_t c) { return ncclWinGetUserPtr(c, nullptr, &pointer); }}};
}

// NCCL lets these pass for no communicator at all.
Calls endings() {
    return {{"CommFinalize", [](ncclComm_t c) { return ncclCommFinalize(c); }},
            {"CommRevoke", [](ncclComm_t c) { return ncclCommRevoke(c, 0); }},
            {"CommDestroy", [](ncclComm_t c) { return ncclCommDestroy(c); }},
            {"CommAbort", [](ncclComm_t c) { return ncclCommAbort(c); }}};
}

void expect_each(const Calls& calls, ncclComm_t comm, ncclResult_t wanted, const std::string& words) {
    for (const auto& [name, call] : calls) {
        EXPECT_EQ(call(comm), wanted) << name << ": " << last_error();
        EXPECT_EQ(last_error().find("nccl" + name + ": "), 0u) << last_error();
        EXPECT_NE(last_error().find(words), std::string::npos) << last_error();
    }
}

TEST(NcclArguments, CommunicatorsThatAreNone) {
    const Memory memory(0, std::size_t{64});
    std::array<long, 16> garbage{};
    for (const Calls& calls : {operations(memory.data()), other_calls(memory.data())})
        expect_each(calls, nullptr, ncclInvalidArgument, "the communicator is NULL");
    for (const auto& [name, call] : endings()) EXPECT_NCCL(call(nullptr)) << name;
    EXPECT_NCCL(ncclCommRevoke(nullptr, 7));
    for (const Calls& calls : {operations(memory.data()), other_calls(memory.data()), endings()}) {
        expect_each(calls, reinterpret_cast<ncclComm_t>(garbage.data()), ncclInvalidArgument,
                    "not a communicator created by this library");
        expect_each(calls, reinterpret_cast<ncclComm_t>(reinterpret_cast<char*>(garbage.data()) + 1),
                    ncclInvalidArgument, "not a communicator created by this library");
    }
}

TEST(NcclArguments, CommunicatorsThatAreGone) {
    const Memory memory(0, std::size_t{64});
    for (const auto& end : {ncclCommDestroy, ncclCommAbort}) {
        ncclComm_t comm = nullptr;
        ASSERT_NCCL(sidestepNcclSetDevice(0));
        ASSERT_NCCL(ncclCommInitRank(&comm, 1, new_id(), 0));
        ASSERT_NCCL(end(comm));
        for (const Calls& calls : {operations(memory.data()), other_calls(memory.data()), endings()})
            expect_each(calls, comm, ncclInvalidArgument, "the communicator was destroyed");
        // In a group as well: its end says so again, and the next group starts afresh.
        ASSERT_NCCL(ncclGroupStart());
        EXPECT_EQ(ncclBcast(memory.data(), 1, type, 0, comm, nullptr), +ncclInvalidArgument);
        EXPECT_EQ(ncclGroupEnd(), +ncclInvalidArgument);
        EXPECT_EQ(last_error(), "ncclGroupEnd: the communicator was destroyed");
        ASSERT_NCCL(ncclGroupStart());
        EXPECT_NCCL(ncclGroupEnd());
    }
}

TEST(NcclArguments, CommunicatorsThatHaveEnded) {
    const Memory memory(0, std::size_t{64});
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(sidestepNcclSetDevice(0));
    ASSERT_NCCL(ncclCommInitRank(&comm, 1, new_id(), 0));
    ASSERT_NCCL(ncclCommFinalize(comm));
    expect_each(operations(memory.data()), comm, ncclInvalidUsage, "the communicator was finalized");
    ncclComm_t child = comm;
    EXPECT_EQ(ncclCommSplit(comm, 0, 0, &child, nullptr), +ncclInvalidUsage);
    EXPECT_EQ(child, nullptr);
    EXPECT_EQ(ncclCommFinalize(comm), +ncclInvalidArgument);  // as NCCL has it
    EXPECT_NCCL(ncclCommDestroy(comm));

    const World world(2);
    ASSERT_NCCL(ncclCommRevoke(world[0], 0));
    expect_each(operations(memory.data()), world[0], ncclInvalidUsage, "the communicator was revoked");
    EXPECT_EQ(ncclCommFinalize(world[0]), +ncclInvalidUsage);
    EXPECT_EQ(ncclCommRevoke(world[0], 0), +ncclInvalidUsage);
    ASSERT_NCCL(ncclCommRevoke(world[1], 0));
}

TEST(NcclArguments, NoMemoryAtAll) {
    const World world(1);
    expect_each(operations(nullptr), world[0], ncclInvalidArgument, "");
    // Of nothing it is looked at by nobody.
    for (const auto& [name, call] : operations(nullptr, 0))
        if (name != "Send" && name != "Recv") {
            EXPECT_NCCL(call(world[0])) << name;
        }
}

TEST(NcclArguments, CountsBeyondAllMemory) {
    const World world(2);
    const Memory memory(0, std::size_t{64});
    for (const std::size_t count :
         {std::numeric_limits<std::size_t>::max(), std::size_t{1} << 62, std::size_t{1} << 61}) {
        expect_each(operations(memory.data(), count), world[0], ncclInvalidArgument, "");
        ncclResult_t state = ncclInternalError;
        EXPECT_NCCL(ncclCommGetAsyncError(world[0], &state));
        EXPECT_EQ(state, +ncclSuccess) << count;
    }
    void* handle = &handle;
    EXPECT_EQ(ncclCommRegister(world[0], memory.data(), std::numeric_limits<std::size_t>::max(), &handle),
              +ncclInvalidArgument);
    EXPECT_EQ(handle, nullptr);
    EXPECT_NE(last_error().find("past the end of the address space"), std::string::npos) << last_error();
    // More than the allocation has, yet no nonsense: a handle that nobody maps.
    EXPECT_NCCL(ncclCommRegister(world[0], memory.data(), std::size_t{1} << 40, &handle));
    EXPECT_NE(handle, nullptr);
    EXPECT_NCCL(ncclCommDeregister(world[0], handle));
}

TEST(NcclArguments, NowhereToWriteTo) {
    const World world(2);
    const Memory memory(0, std::size_t{64});
    std::array<int, 1> excluded = {1};
    float scale = 1;
    ncclRedOp_t op = 0;
    ncclComm_t comm = nullptr;
    for (const ncclResult_t result :
         {ncclCommCount(world[0], nullptr), ncclCommCuDevice(world[0], nullptr),
          ncclCommUserRank(world[0], nullptr), ncclCommGetAsyncError(world[0], nullptr),
          ncclCommSplit(world[0], 0, 0, nullptr, nullptr),
          ncclCommShrink(world[0], excluded.data(), 1, nullptr, nullptr, 0),
          ncclCommShrink(world[0], nullptr, 1, &comm, nullptr, 0), ncclCommInitAll(nullptr, 1, nullptr),
          ncclCommInitRankScalable(&comm, 1, 0, 1, nullptr, nullptr),
          ncclCommRegister(world[0], memory.data(), 4, nullptr),
          ncclCommRegister(world[0], nullptr, 4, nullptr),
          ncclCommWindowRegister(world[0], memory.data(), 4, nullptr, 0),
          ncclRedOpCreatePreMulSum(nullptr, &scale, ncclFloat32, ncclScalarHostImmediate, world[0]),
          ncclRedOpCreatePreMulSum(&op, nullptr, ncclFloat32, ncclScalarHostImmediate, world[0]),
          ncclMemAlloc(nullptr, 4), ncclGetVersion(nullptr), ncclGetUniqueId(nullptr)})
        EXPECT_EQ(result, +ncclInvalidArgument) << last_error();
    EXPECT_EQ(comm, nullptr);
}

TEST(NcclArguments, NumbersThatMakeNoSense) {
    const World world(2);
    float scale = 1;
    ncclRedOp_t op = 0;
    ncclComm_t comm = nullptr;
    std::array<int, 2> ranks = {0, 2};
    for (const ncclResult_t result :
         {ncclRedOpCreatePreMulSum(&op, &scale, ncclNumTypes, ncclScalarHostImmediate, world[0]),
          ncclRedOpCreatePreMulSum(&op, &scale, -1, ncclScalarHostImmediate, world[0]),
          ncclRedOpCreatePreMulSum(&op, &scale, ncclFloat32, 2, world[0]),
          ncclRedOpDestroy(ncclSum, world[0]), ncclRedOpDestroy(-1, world[0]),
          ncclCommSplit(world[0], -2, 0, &comm, nullptr),
          ncclCommShrink(world[0], &ranks[1], 1, &comm, nullptr, 0),
          ncclCommShrink(world[0], ranks.data(), 0, &comm, nullptr, 0),
          ncclCommShrink(world[0], ranks.data(), -1, &comm, nullptr, 0),
          ncclCommShrink(world[1], ranks.data(), 1, &comm, nullptr, 2), ncclCommRevoke(world[0], 7),
          ncclCommInitAll(&comm, -1, nullptr), ncclCommInitRankScalable(&comm, 1, 0, 0, nullptr, nullptr),
          ncclCommWindowRegister(world[0], &scale, 4, reinterpret_cast<ncclWindow_t*>(&comm), 64)})
        EXPECT_EQ(result, +ncclInvalidArgument) << last_error();
    ncclUniqueId id = new_id();
    for (const auto& [count, rank] : {std::pair{0, 0}, {-1, 0}, {2, -1}, {2, 2}, {17, 0}}) {
        EXPECT_EQ(ncclCommInitRank(&comm, count, id, rank), +ncclInvalidArgument) << count << " " << rank;
        EXPECT_EQ(comm, nullptr);
    }
    EXPECT_NE(last_error().find("16"), std::string::npos) << last_error();
}

TEST(NcclArguments, GroupsThatMakeNoSense) {
    EXPECT_EQ(ncclGroupEnd(), +ncclInvalidUsage);
    EXPECT_EQ(last_error(), "ncclGroupEnd: there is no ncclGroupStart to end");
    EXPECT_EQ(ncclGroupSimulateEnd(nullptr), +ncclInvalidUsage);
    ncclSimInfo_t info{};  // not initialised
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_EQ(ncclGroupSimulateEnd(&info), +ncclInvalidArgument);
    // That has ended the group.
    EXPECT_EQ(ncclGroupEnd(), +ncclInvalidUsage);
    // Only the outermost is simulated: of a nested one it is an end like any, which looks at nothing.
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclGroupStart());
    info.estimatedTime = 7;
    EXPECT_NCCL(ncclGroupSimulateEnd(&info));
    EXPECT_EQ(info.estimatedTime, 7);
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_EQ(ncclGroupEnd(), +ncclInvalidUsage);
}

// A communicator that is destroyed within the group in which it was used: the operations run first.
TEST(NcclArguments, DestroyedBeforeTheGroupEnds) {
    std::array<ncclComm_t, 2> comms{};
    ASSERT_NCCL(ncclCommInitAll(comms.data(), 2, nullptr));
    const Memory one(0, encode(type, {1})), two(1, encode(type, {2}));
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(one.data(), one.data(), 1, type, ncclSum, comms[0], nullptr));
    EXPECT_NCCL(ncclAllReduce(two.data(), two.data(), 1, type, ncclSum, comms[1], nullptr));
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
    EXPECT_EQ(ncclCommDestroy(comms[0]), +ncclInvalidArgument);
    ASSERT_NCCL(ncclGroupEnd());
    EXPECT_EQ(decode(type, one.data(), 1), std::vector<double>{3});
    EXPECT_EQ(decode(type, two.data(), 1), std::vector<double>{3});
}

}  // namespace
}  // namespace sidestep::nccl_test::arguments
