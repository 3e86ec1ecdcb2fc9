// How communicators are made and end, by one thread and by several.
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

#include <fmt/format.h>

#include "tests/nccl/world.hpp"

namespace sidestep::nccl_test::communicators {
namespace {

TEST(NcclCommunicators, SeveralRanksOfOneThreadInAGroup) {
    const ncclUniqueId id = new_id();
    std::vector<ncclComm_t> comms(3);
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 3; ++rank) {
        ASSERT_NCCL(sidestepNcclSetDevice(rank + 2));
        EXPECT_NCCL(ncclCommInitRank(&comms[static_cast<std::size_t>(rank)], 3, id, rank));
    }
    ASSERT_NCCL(ncclGroupEnd());
    for (int rank = 0; rank < 3; ++rank) {
        int count = 0;
        int own = 0;
        int device = 0;
        const ncclComm_t comm = comms[static_cast<std::size_t>(rank)];
        EXPECT_NCCL(ncclCommCount(comm, &count));
        EXPECT_NCCL(ncclCommUserRank(comm, &own));
        EXPECT_NCCL(ncclCommCuDevice(comm, &device));
        EXPECT_EQ(count, 3);
        EXPECT_EQ(own, rank);
        EXPECT_EQ(device, rank + 2);
    }
    expect_sum(comms, {2, 3, 4});
    destroy(comms);
}

TEST(NcclCommunicators, OneThreadARank) {
    const ncclUniqueId id = new_id();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank)
        threads.emplace_back([rank, id] {
            ncclComm_t comm = nullptr;
            ASSERT_NCCL(ncclCommInitRank(&comm, 4, id, rank));
            // Without a word about devices: rank r is on GPU r, and so is what it allocates afterwards.
            void* memory = nullptr;
            ASSERT_NCCL(ncclMemAlloc(&memory, 4000));
            const auto bytes = encode(ncclInt32, std::vector<double>(1000, rank));
            std::memcpy(memory, bytes.data(), bytes.size());
            for (int turn = 0; turn < 20; ++turn)
                EXPECT_NCCL(ncclAllReduce(memory, memory, 1000, ncclInt32, ncclMax, comm, nullptr));
            EXPECT_EQ(decode(ncclInt32, memory, 1000), std::vector<double>(1000, 3));
            EXPECT_NCCL(ncclCommFinalize(comm));
            EXPECT_EQ(ncclAllReduce(memory, memory, 1, ncclInt32, ncclMax, comm, nullptr), +ncclInvalidUsage);
            EXPECT_NCCL(ncclCommDestroy(comm));
            EXPECT_NCCL(ncclMemFree(memory));
        });
    for (std::thread& thread : threads) thread.join();
}

// Of several processes a rank each is on the GPU that the launcher gave it: all that is its own, without a
// word.
TEST(NcclCommunicators, TheGpuThatALauncherGave) {
    const std::array<std::array<const char*, 2>, 6> launched = {{{"RANK", "3"},
                                                                 {"WORLD_SIZE", "4"},
                                                                 {"LOCAL_RANK", "3"},
                                                                 {"LOCAL_WORLD_SIZE", "4"},
                                                                 {"MASTER_ADDR", "127.0.0.1"},
                                                                 {"MASTER_PORT", "29500"}}};
    for (const auto& [name, value] : launched) ::setenv(name, value, 1);
    std::thread([] {  // that has chosen none
        ncclComm_t comm = nullptr;
        ASSERT_NCCL(ncclCommInitRank(&comm, 1, new_id(), 0));
        int device = -1;
        EXPECT_NCCL(ncclCommCuDevice(comm, &device));
        EXPECT_EQ(device, 3);
        EXPECT_NCCL(ncclCommDestroy(comm));
    })
        .join();
    for (const auto& [name, value] : launched) ::unsetenv(name);
}

TEST(NcclCommunicators, AllOfAListOfDevices) {
    const std::array devices = {5, 1};
    std::vector<ncclComm_t> comms(2);
    ASSERT_NCCL(ncclCommInitAll(comms.data(), 2, devices.data()));
    int device = 0;
    EXPECT_NCCL(ncclCommCuDevice(comms[0], &device));
    EXPECT_EQ(device, 5);
    expect_sum(comms, {5, 1});
    destroy(comms);

    const std::array twice = {5, 5};
    EXPECT_EQ(ncclCommInitAll(comms.data(), 2, twice.data()), +ncclInvalidUsage);
    EXPECT_EQ(last_error(), "ncclCommInitAll: device 5 is listed twice");
    comms.resize(9);
    EXPECT_EQ(ncclCommInitAll(comms.data(), 9, nullptr), +ncclInvalidArgument);
    EXPECT_NE(last_error().find("8 GPUs"), std::string::npos) << last_error();
}

TEST(NcclCommunicators, ScalableWithSeveralIds) {
    std::array ids = {new_id(), new_id()};
    std::vector<ncclComm_t> comms(2);
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 2; ++rank) {
        ASSERT_NCCL(sidestepNcclSetDevice(rank));
        EXPECT_NCCL(ncclCommInitRankScalable(&comms[static_cast<std::size_t>(rank)], 2, rank, 2, ids.data(),
                                             nullptr));
    }
    ASSERT_NCCL(ncclGroupEnd());
    expect_sum(comms, {0, 1});
    destroy(comms);
}

TEST(NcclCommunicators, NonBlocking) {
    const ncclUniqueId id = new_id();
    ncclConfig_t config = default_config();
    config.blocking = 0;
    std::vector<ncclComm_t> comms(2);
    ASSERT_NCCL(sidestepNcclSetDevice(0));
    ASSERT_EQ(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config), +ncclInProgress);
    ASSERT_NE(comms[0], nullptr);
    // Rank 1 is not there yet, so this lasts.
    ncclResult_t state = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(comms[0], &state));
    EXPECT_EQ(state, +ncclInProgress);
    EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 1, ncclInt8, ncclSum, comms[0], nullptr), +ncclInvalidArgument);
    EXPECT_NE(last_error().find("not ready"), std::string::npos) << last_error();
    ASSERT_NCCL(sidestepNcclSetDevice(1));
    ASSERT_EQ(ncclCommInitRankConfig(&comms[1], 2, id, 1, &config), +ncclInProgress);
    for (ncclComm_t comm : comms) ASSERT_EQ(settled(comm), +ncclSuccess) << last_error(comm);
    expect_sum(comms, {0, 1});

    // Children inherit it. Both ranks are asked before either has an answer.
    std::vector<ncclComm_t> children(2);
    for (int rank = 0; rank < 2; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        ASSERT_EQ(ncclCommSplit(comms[r], 0, -rank, &children[r], nullptr), +ncclInProgress);
    }
    for (std::size_t r = 0; r < 2; ++r) {
        ASSERT_EQ(settled(comms[r]), +ncclSuccess) << last_error(comms[r]);
        ASSERT_NE(children[r], nullptr);
        int rank = 0;
        EXPECT_NCCL(ncclCommUserRank(children[r], &rank));
        EXPECT_EQ(rank, r == 0 ? 1 : 0);
    }
    for (ncclComm_t child : children) {
        const ncclResult_t began = ncclCommFinalize(child);
        EXPECT_TRUE(began == ncclSuccess || began == ncclInProgress) << last_error();
        EXPECT_EQ(settled(child), +ncclSuccess);
    }
    destroy(children);
    destroy(comms);
}

TEST(NcclCommunicators, AbortedWhileTheyAreBeingMade) {
    ncclConfig_t config = default_config();
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, new_id(), 0, &config), +ncclInProgress);
    EXPECT_NCCL(ncclCommAbort(comm));
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), +ncclInvalidArgument);
}

// Entries that ranks of a group have where they meet.
std::size_t meeting(const ncclUniqueId& id) {
    std::string name;
    for (const char byte : std::string_view(id.internal + sizeof "sidestep group", 16))
        name += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    std::size_t found = 0;
    for (const auto& entry : std::filesystem::directory_iterator(std::getenv("SIDESTEP_PEER_FOLDER")))
        found += entry.path().filename().string().find(name) != std::string::npos;
    return found;
}

// What goes on in the background stops too, long before the timeout.
TEST(NcclCommunicators, AbortedOrDestroyedOnesWaitForNobodyInTheBackground) {
    ncclConfig_t config = default_config();
    config.blocking = 0;
    const std::string timeout = std::getenv("SIDESTEP_GROUP_TIMEOUT");
    ::setenv("SIDESTEP_GROUP_TIMEOUT", "600", 1);
    for (const auto let_go : {ncclCommAbort, ncclCommDestroy}) {
        const ncclUniqueId id = new_id();
        ncclComm_t comm = nullptr;
        ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), +ncclInProgress);
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        const auto wait = [&](bool there) {
            while ((meeting(id) > 0) != there && std::chrono::steady_clock::now() < until)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
        };
        wait(true);
        ASSERT_GT(meeting(id), 0u);
        EXPECT_NCCL(let_go(comm));
        wait(false);
        EXPECT_EQ(meeting(id), 0u);
    }
    ::setenv("SIDESTEP_GROUP_TIMEOUT", timeout.c_str(), 1);
}

// Whether `words` say that rank 0 was told to stop, and not that its time was up.
void expect_told_to_stop(const std::string& words, const char* call) {
    EXPECT_EQ(words.find(call), 0u) << words;
    EXPECT_NE(words.find("was told to stop"), std::string::npos) << words;
    EXPECT_NE(words.find("rank 1"), std::string::npos) << words;
}

TEST(NcclCommunicators, AbortOfABlockingJoinByAnotherThread) {
    ncclComm_t comm = nullptr;
    ncclResult_t result = ncclSuccess;
    std::string words;
    std::thread joins([&] {
        result = ncclCommInitRank(&comm, 2, new_id(), 0);
        words = last_error();
    });
    // The handle is there before the others are.
    ncclComm_t handle = nullptr;
    while ((handle = __atomic_load_n(&comm, __ATOMIC_ACQUIRE)) == nullptr) std::this_thread::yield();
    EXPECT_NCCL(ncclCommAbort(handle));
    joins.join();
    EXPECT_EQ(result, +ncclRemoteError);
    EXPECT_EQ(comm, nullptr);
    expect_told_to_stop(words, "ncclCommInitRank: ");
}

// The abort of a parent ends its split and its shrink, though rank 1 never calls either.
TEST(NcclCommunicators, AbortOfASplitOrAShrinkByAnotherThread) {
    for (const bool shrinks : {false, true}) {
        std::vector<ncclComm_t> comms(3);
        ASSERT_NCCL(ncclCommInitAll(comms.data(), 3, nullptr));
        ncclComm_t child = nullptr;
        ncclResult_t result = ncclSuccess;
        std::string words;
        std::atomic<bool> calls{false};
        std::thread waits([&] {
            int excluded[] = {2};
            calls = true;
            result = shrinks ? ncclCommShrink(comms[0], excluded, 1, &child, nullptr, NCCL_SHRINK_DEFAULT)
                             : ncclCommSplit(comms[0], 0, 0, &child, nullptr);
            words = last_error();
        });
        while (!calls) std::this_thread::yield();
        // Long enough that it waits, most often. Where it does not yet, it meets a handle that is gone.
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_NCCL(ncclCommAbort(comms[0]));
        waits.join();
        EXPECT_NE(result, +ncclSuccess);
        EXPECT_EQ(child, nullptr);
        EXPECT_EQ(words.find("did not call"), std::string::npos) << words;
        EXPECT_NCCL(ncclCommAbort(comms[1]));
        EXPECT_NCCL(ncclCommAbort(comms[2]));
    }
}

TEST(NcclCommunicators, Split) {
    const World world(4);
    std::vector<ncclComm_t> halves(4);
    // Ranks 0 and 2, and 3 before 1.
    ASSERT_NCCL(world.together([&](int rank) {
        EXPECT_NCCL(ncclCommSplit(world[rank], rank % 2, rank % 2 == 0 ? rank : -rank,
                                  &halves[static_cast<std::size_t>(rank)], nullptr));
    }));
    int rank_of_3 = -1;
    int count = 0;
    EXPECT_NCCL(ncclCommUserRank(halves[3], &rank_of_3));
    EXPECT_NCCL(ncclCommCount(halves[3], &count));
    EXPECT_EQ(rank_of_3, 0);
    EXPECT_EQ(count, 2);
    expect_sum({halves[0], halves[2]}, {0, 2});
    expect_sum({halves[3], halves[1]}, {3, 1});
    destroy(halves);

    std::vector<ncclComm_t> some(4, world[0]);
    ASSERT_NCCL(world.together([&](int rank) {
        EXPECT_NCCL(ncclCommSplit(world[rank], rank == 2 ? NCCL_SPLIT_NOCOLOR : 7, rank,
                                  &some[static_cast<std::size_t>(rank)], nullptr));
    }));
    EXPECT_EQ(some[2], nullptr);
    expect_sum({some[0], some[1], some[3]}, {0, 1, 3});
    destroy({some[0], some[1], some[3]});
}

TEST(NcclCommunicators, Shrink) {
    const World world(4);
    int excluded[] = {1};
    std::vector<ncclComm_t> fewer(4);
    ASSERT_NCCL(ncclGroupStart());
    for (const int rank : {0, 2, 3})
        EXPECT_NCCL(ncclCommShrink(world[rank], excluded, 1, &fewer[static_cast<std::size_t>(rank)], nullptr,
                                   NCCL_SHRINK_DEFAULT));
    ASSERT_NCCL(ncclGroupEnd());
    int rank = -1;
    EXPECT_NCCL(ncclCommUserRank(fewer[2], &rank));
    EXPECT_EQ(rank, 1);
    expect_sum({fewer[0], fewer[2], fewer[3]}, {0, 2, 3});
    destroy({fewer[0], fewer[2], fewer[3]});
    EXPECT_EQ(ncclCommShrink(world[1], excluded, 1, &fewer[1], nullptr, NCCL_SHRINK_DEFAULT),
              +ncclInvalidArgument);
    EXPECT_NE(last_error().find("rank 1 excludes itself"), std::string::npos) << last_error();
}

TEST(NcclCommunicators, ShrinksOfOneCommunicatorWithOtherExclusions) {
    const World world(3);
    for (int excluded : {2, 1, 2, 0}) {
        std::vector<int> ranks{0, 1, 2};
        ranks.erase(ranks.begin() + excluded);
        std::vector<ncclComm_t> fewer(2);
        ASSERT_NCCL(ncclGroupStart());
        for (std::size_t i = 0; i < 2; ++i)
            EXPECT_NCCL(
                ncclCommShrink(world[ranks[i]], &excluded, 1, &fewer[i], nullptr, NCCL_SHRINK_DEFAULT));
        ASSERT_NCCL(ncclGroupEnd());
        expect_sum(fewer, ranks);
        destroy(fewer);
    }
}

TEST(NcclCommunicators, ShrinkOfACommunicatorThatIsStuck) {
    const World world(3);
    std::vector<Memory> data = world.memory(4000);
    // Rank 2 never takes part, so ranks 0 and 1 wait until they are told to stop.
    std::vector<std::thread> stuck;
    std::array<ncclResult_t, 2> results{};
    for (std::size_t r = 0; r < 2; ++r)
        stuck.emplace_back([&, r] {
            results[r] = ncclAllReduce(data[r].data(), data[r].data(), 1000, ncclFloat32, ncclSum,
                                       world[static_cast<int>(r)], nullptr);
        });
    int excluded[] = {2};
    std::vector<ncclComm_t> fewer(2);
    ASSERT_NCCL(ncclGroupStart());
    for (std::size_t r = 0; r < 2; ++r)
        EXPECT_NCCL(
            ncclCommShrink(world[static_cast<int>(r)], excluded, 1, &fewer[r], nullptr, NCCL_SHRINK_ABORT));
    ASSERT_NCCL(ncclGroupEnd());
    for (std::thread& thread : stuck) thread.join();
    for (const ncclResult_t result : results) EXPECT_NE(result, +ncclSuccess);
    expect_sum(fewer, {0, 1});
    destroy(fewer);
}

TEST(NcclCommunicators, RevokedOnesCanBeSplit) {
    const World world(2);
    std::vector<Memory> data = world.memory(400);
    ASSERT_NCCL(ncclCommRevoke(world[0], NCCL_REVOKE_DEFAULT));
    ASSERT_NCCL(ncclCommRevoke(world[1], NCCL_REVOKE_DEFAULT));
    for (int rank = 0; rank < 2; ++rank) {
        EXPECT_EQ(settled(world[rank]), +ncclSuccess);
        EXPECT_EQ(ncclBcast(data[0].data(), 1, ncclInt8, 0, world[rank], nullptr), +ncclInvalidUsage);
    }
    EXPECT_NE(last_error().find("revoked"), std::string::npos);
    std::vector<ncclComm_t> again(2);
    ASSERT_NCCL(world.together([&](int rank) {
        EXPECT_NCCL(ncclCommSplit(world[rank], 0, rank, &again[static_cast<std::size_t>(rank)], nullptr));
    }));
    expect_sum(again, {0, 1});
    destroy(again);
    EXPECT_EQ(ncclCommRevoke(world[0], 1), +ncclInvalidArgument);
}

TEST(NcclCommunicators, AbortOfAStuckOperationByAnotherThread) {
    std::vector<ncclComm_t> comms(2);
    ASSERT_NCCL(ncclCommInitAll(comms.data(), 2, nullptr));
    Memory memory(0, std::size_t{400}), other(1, std::size_t{400});
    ncclResult_t result = ncclSuccess;
    std::string words;
    // Of two operations the other rank takes part in the first: when that has ended, this thread is within
    // ncclGroupEnd and stays there.
    std::thread stuck([&] {
        EXPECT_NCCL(ncclGroupStart());
        for (const ncclRedOp_t op : {ncclSum, ncclMax})  // which are two operations
            EXPECT_NCCL(ncclAllReduce(memory.data(), memory.data(), 100, ncclFloat32, op, comms[0], nullptr));
        result = ncclGroupEnd();
        words = last_error();
    });
    EXPECT_NCCL(ncclAllReduce(other.data(), other.data(), 100, ncclFloat32, ncclSum, comms[1], nullptr));
    // All communicators in one group, as PyTorch does.
    ASSERT_NCCL(ncclGroupStart());
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommAbort(comm));
    ASSERT_NCCL(ncclGroupEnd());
    stuck.join();
    EXPECT_NE(result, +ncclSuccess);
    EXPECT_NE(words.find("ncclCommAbort"), std::string::npos) << words;  // and not the timeout
    // What belonged to it went with it; the handle itself says so.
    EXPECT_NCCL(ncclCommDeregister(comms[0], &memory));
    EXPECT_EQ(ncclCommDestroy(comms[0]), +ncclInvalidArgument);
    EXPECT_EQ(last_error(), "ncclCommDestroy: the communicator was destroyed");
}

TEST(NcclCommunicators, ConfigurationsOfOtherVersions) {
    struct Longer {
        ncclConfig_t known;
        char unknown[64];
    } longer{default_config(), {}};
    longer.known.size = sizeof longer;
    std::memset(longer.unknown, 0x77, sizeof longer.unknown);
    longer.known.CTAPolicy = 2;
    longer.known.commName = "a name";
    ASSERT_NCCL(sidestepNcclSetDevice(0));
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &longer.known));
    EXPECT_NCCL(ncclCommDestroy(comm));
    // One that ends before `commName`, where something else lies then.
    ncclConfig_t shorter = default_config();
    shorter.size = offsetof(ncclConfig_t, commName);
    std::memset(&shorter.commName, 0x77, sizeof shorter.commName);
    ASSERT_NCCL(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &shorter));
    EXPECT_NCCL(ncclCommDestroy(comm));
    ncclConfig_t wrong = default_config();
    wrong.magic = 0;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &wrong), +ncclInvalidArgument);
    EXPECT_NE(last_error().find("NCCL_CONFIG_INITIALIZER"), std::string::npos);
    EXPECT_EQ(comm, nullptr);
}

TEST(NcclCommunicators, ManyOneAfterTheOther) {
    for (int turn = 0; turn < 30; ++turn) {
        const World world(2);
        if (turn % 10 == 0) expect_sum({world[0], world[1]}, {0, 1});
    }
}

// A checkpoint, a compilation or an evaluation of one rank takes minutes; NCCL waits.
TEST(NcclCommunicators, AStragglerOfMoreThanAMinuteIsWaitedForAndNamed) {
    ::unsetenv("SIDESTEP_GROUP_TIMEOUT");
    {
        World world(2);
        auto data = world.memory(4000);
        testing::internal::CaptureStderr();
        std::thread early([&] {
            EXPECT_NCCL(
                ncclAllReduce(data[0].data(), data[0].data(), 1000, ncclInt32, ncclSum, world[0], nullptr));
        });
        // Meanwhile, two that call different counts, each of which goes by an algorithm of its own, are told.
        World odd(2);
        auto large = odd.memory(4'000'000);
        std::atomic<int> told{0};
        std::vector<std::thread> differing;
        for (const std::size_t r : {0u, 1u})
            differing.emplace_back([&, r] {
                told += ncclAllReduce(large[r].data(), large[r].data(), r == 0 ? 1000 : 1'000'000, ncclInt32,
                                      ncclSum, odd[static_cast<int>(r)], nullptr) == ncclInvalidUsage;
            });
        std::this_thread::sleep_for(std::chrono::seconds(62));
        EXPECT_EQ(told, 2);
        EXPECT_NCCL(ncclCommRevoke(odd[0], NCCL_REVOKE_DEFAULT));
        for (std::thread& thread : differing) thread.join();
        EXPECT_NCCL(
            ncclAllReduce(data[1].data(), data[1].data(), 1000, ncclInt32, ncclSum, world[1], nullptr));
        early.join();
        const auto process = std::to_string(::getpid());
        std::this_thread::sleep_for(std::chrono::seconds(1));  // the service thread sees it
        const std::string said = testing::internal::GetCapturedStderr();
        EXPECT_NE(
            said.find("rank 0 waits for rank 1 (process " + process +
                      ", before its first operation) since 30 s, in operation 1, all_reduce 1000 i32 sum"),
            std::string::npos)
            << said;
        EXPECT_NE(said.find("since 60 s"), std::string::npos) << said;
        EXPECT_NE(said.find("goes on after 6"), std::string::npos) << said;
    }
    ::setenv("SIDESTEP_GROUP_TIMEOUT", default_timeout_s, 1);
}

}  // namespace
}  // namespace sidestep::nccl_test::communicators
