// What NCCL 2.29 to 2.32 added: what works, and the words of what is refused.
#include <array>
#include <cstddef>
#include <cstring>
#include <string>

#include "tests/nccl/world.hpp"

namespace sidestep::nccl_test::later {
namespace {

constexpr ncclCollConfig_t one_call() {
    constexpr int undefined = NCCL_CONFIG_UNDEF_INT;
    return {sizeof(ncclCollConfig_t),
            NCCL_CONFIG_MAGIC,
            23203,
            nullptr,
            undefined,
            undefined,
            undefined,
            undefined,
            nullptr,
            1,
            undefined,
            0,
            nullptr};
}

ncclCommProperties_t no_properties() {
    ncclCommProperties_t properties;
    std::memset(&properties, 0x77, sizeof properties);
    properties.size = sizeof properties;
    properties.magic = NCCL_CONFIG_MAGIC;
    properties.version = 23203;
    return properties;
}

// Ranks 0 and 1 are there; 2 and 3 come.
void grow(const World& world, std::vector<ncclComm_t>& grown) {
    ncclUniqueId id{};
    ASSERT_NCCL(ncclCommGetUniqueId(world[0], &id));
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclCommGrow(world[0], 4, &id, -1, &grown[0], nullptr));
    EXPECT_NCCL(ncclCommGrow(world[1], 4, nullptr, -1, &grown[1], nullptr));
    for (int rank = 2; rank < 4; ++rank) {
        ASSERT_NCCL(sidestepNcclSetDevice(rank));
        EXPECT_NCCL(ncclCommGrow(nullptr, 4, &id, rank, &grown[static_cast<std::size_t>(rank)], nullptr));
    }
    ASSERT_NCCL(ncclGroupEnd());
}

TEST(NcclLater, Grow) {
    const World world(2);
    std::vector<ncclComm_t> grown(4), again(4);
    grow(world, grown);
    for (int rank = 0; rank < 4; ++rank) {
        int own = -1;
        EXPECT_NCCL(ncclCommUserRank(grown[static_cast<std::size_t>(rank)], &own));
        EXPECT_EQ(own, rank);
    }
    expect_sum(grown, {0, 1, 2, 3});
    // The parent goes on, and can grow once more: by another id, which the first one is refused as.
    expect_sum({world[0], world[1]}, {0, 1});
    grow(world, again);
    expect_sum(again, {0, 1, 2, 3});
    expect_sum(grown, {0, 1, 2, 3});
    destroy(again);
    destroy(grown);
}

TEST(NcclLater, GrowthThatMakesNoSense) {
    const World world(2);
    ncclUniqueId first{};
    ASSERT_NCCL(ncclCommGetUniqueId(world[0], &first));
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommGrow(world[0], 4, &first, 0, &comm, nullptr), +ncclInvalidArgument);
    EXPECT_NE(last_error().find("keeps its number and passes -1"), std::string::npos) << last_error();
    EXPECT_EQ(ncclCommGrow(world[0], 2, &first, -1, &comm, nullptr), +ncclInvalidArgument);
    EXPECT_EQ(last_error(), "ncclCommGrow: growing to 2 ranks: there are 2 already");
    EXPECT_EQ(ncclCommGrow(world[0], 4, &first, -1, nullptr, nullptr), +ncclInvalidArgument);
    EXPECT_EQ(ncclCommGrow(nullptr, 4, nullptr, 3, &comm, nullptr), +ncclInvalidArgument);
    EXPECT_EQ(ncclCommGrow(nullptr, 4, &first, 4, &comm, nullptr), +ncclInvalidArgument);
    const ncclUniqueId other = new_id();
    EXPECT_EQ(ncclCommGrow(world[0], 4, &other, -1, &comm, nullptr), +ncclInvalidArgument);
    EXPECT_NE(last_error().find("next growth"), std::string::npos) << last_error();
    // An id that has been used.
    std::vector<ncclComm_t> grown(4);
    grow(world, grown);
    EXPECT_EQ(ncclCommGrow(world[0], 4, &first, -1, &comm, nullptr), +ncclInvalidArgument);
    EXPECT_EQ(ncclCommGetUniqueId(world[0], nullptr), +ncclInvalidArgument);
    EXPECT_EQ(ncclCommGetUniqueId(nullptr, &first), +ncclInvalidArgument);
    destroy(grown);
}

TEST(NcclLater, PropertiesOfACommunicator) {
    const World world(2);
    auto first = no_properties(), second = no_properties();
    ASSERT_NCCL(ncclCommQueryProperties(world[0], &first));
    ASSERT_NCCL(ncclCommQueryProperties(world[1], &second));
    EXPECT_EQ(second.rank, 1);
    EXPECT_EQ(second.nRanks, 2);
    EXPECT_EQ(second.cudaDev, 1);
    EXPECT_EQ(second.nvmlDev, 1);
    EXPECT_EQ(second.nLsaTeams, 1);
    EXPECT_EQ(second.deviceApiSupport + second.multimemSupport + second.hostRmaSupport + second.cftSupport,
              0);
    EXPECT_EQ(second.ginType + second.railedGinType, 0);
    EXPECT_NE(first.commHash, 0u);
    EXPECT_EQ(first.commHash, second.commHash);
    // A caller of 2.29 has no more than this; one of a later version gets zeros.
    auto shorter = no_properties();
    shorter.size = offsetof(ncclCommProperties_t, commHash);
    ASSERT_NCCL(ncclCommQueryProperties(world[0], &shorter));
    EXPECT_EQ(shorter.hostRmaSupport, 0);
    EXPECT_EQ(shorter.commHash, 0x7777777777777777u);
    struct {
        ncclCommProperties_t known;
        char unknown[8];
    } longer{no_properties(), "unknown"};
    longer.known.size = sizeof longer;
    ASSERT_NCCL(ncclCommQueryProperties(world[0], &longer.known));
    EXPECT_EQ(longer.unknown[0], 0);
    auto wrong = no_properties();
    wrong.magic = 0;
    EXPECT_EQ(ncclCommQueryProperties(world[0], &wrong), +ncclInvalidArgument);
    EXPECT_EQ(ncclCommQueryProperties(world[0], nullptr), +ncclInvalidArgument);
}

TEST(NcclLater, TheMemoryOfAWindow) {
    const World world(1);
    const auto data = world.memory(4096);
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(world[0], data[0].at(64), 1024, &window, NCCL_WIN_DEFAULT));
    void* memory = nullptr;
    EXPECT_NCCL(ncclWinGetUserPtr(world[0], window, &memory));
    EXPECT_EQ(memory, data[0].at(64));
    EXPECT_EQ(ncclWinGetUserPtr(world[0], window, nullptr), +ncclInvalidArgument);
    EXPECT_NCCL(ncclCommWindowDeregister(world[0], window));
    EXPECT_EQ(ncclWinGetUserPtr(world[0], window, &memory), +ncclInvalidArgument);
    EXPECT_EQ(memory, nullptr);
}

// Every operation with a configuration does what it does without.
TEST(NcclLater, CallsWithAConfiguration) {
    const World world(2);
    const auto send = world.memory(16), recv = world.memory(16);
    auto config = one_call();
    config.minCTAs = 4;
    config.CTAPolicy = 2;
    config.userProfilerTag = 7;
    const auto expect = [&](const std::vector<std::vector<double>>& results, const auto& call) {
        for (std::size_t r = 0; r < 2; ++r) {
            const double base = r == 0 ? 1 : 3;
            const auto bytes = encode(ncclInt32, {base, base + 1});
            std::memcpy(send[r].data(), bytes.data(), bytes.size());
            std::memset(recv[r].data(), 0, 16);
        }
        ASSERT_NCCL(world.together([&](int rank) {
            const auto r = static_cast<std::size_t>(rank);
            EXPECT_NCCL(call(send[r].data(), recv[r].data(), world[rank]));
        }));
        for (std::size_t r = 0; r < 2; ++r)
            EXPECT_EQ(decode(ncclInt32, recv[r].data(), results[r].size()), results[r]);
    };
    constexpr auto type = ncclInt32;
    expect({{4, 6}, {4, 6}}, [&](void* from, void* to, ncclComm_t comm) {
        return ncclAllReduceConfig(from, to, 2, type, ncclSum, comm, nullptr, &config);
    });
    expect({{3, 4}, {3, 4}}, [&](void* from, void* to, ncclComm_t comm) {
        return ncclBroadcastConfig(from, to, 2, type, 1, comm, nullptr, &config);
    });
    expect({{3, 8}, {0, 0}}, [&](void* from, void* to, ncclComm_t comm) {
        return ncclReduceConfig(from, to, 2, type, ncclProd, 0, comm, nullptr, &config);
    });
    expect({{1, 2, 3, 4}, {1, 2, 3, 4}}, [&](void* from, void* to, ncclComm_t comm) {
        return ncclAllGatherConfig(from, to, 2, type, comm, nullptr, &config);
    });
    expect({{4}, {6}}, [&](void* from, void* to, ncclComm_t comm) {
        return ncclReduceScatterConfig(from, to, 1, type, ncclSum, comm, nullptr, &config);
    });
    expect({{1, 3}, {2, 4}}, [&](void* from, void* to, ncclComm_t comm) {
        return ncclAlltoAllConfig(from, to, 1, type, comm, nullptr, &config);
    });
    expect({{0, 0, 0, 0}, {1, 2, 3, 4}}, [&](void* from, void* to, ncclComm_t comm) {
        return ncclGatherConfig(from, to, 2, type, 1, comm, nullptr, &config);
    });
    expect({{3, 0}, {4, 0}}, [&](void* from, void* to, ncclComm_t comm) {
        return ncclScatterConfig(from, to, 1, type, 1, comm, nullptr, nullptr);
    });
}

TEST(NcclLater, ConfigurationsThatCannotBeHonoured) {
    const World world(1);
    const auto data = world.memory(64);
    void* own = data[0].data();
    const auto sum = [&](const ncclCollConfig_t& config) {
        return ncclAllReduceConfig(own, own, 1, ncclInt32, ncclSum, world[0], nullptr, &config);
    };
    auto config = one_call();
    config.algSelection = "ring";
    EXPECT_EQ(sum(config), +ncclInvalidUsage);
    EXPECT_NE(last_error().find("'ring'"), std::string::npos) << last_error();
    config.forceAlgSelection = 0;
    EXPECT_NCCL(sum(config));
    config.algSelection = "";
    config.forceAlgSelection = 1;
    EXPECT_NCCL(sum(config));
    config.launchCompletionEvent = &config;
    EXPECT_EQ(sum(config), +ncclInvalidUsage);
    EXPECT_NE(last_error().find("launchCompletionEvent"), std::string::npos) << last_error();
    // One of 2.31 ends before it.
    config.size = offsetof(ncclCollConfig_t, launchCompletionEvent);
    EXPECT_NCCL(sum(config));
    config = one_call();
    config.maxCTAs = 0;
    EXPECT_EQ(sum(config), +ncclInvalidArgument);
    config = one_call();
    config.magic = 0;
    EXPECT_EQ(sum(config), +ncclInvalidArgument);
    EXPECT_NE(last_error().find("NCCL_COLLCONFIG_INITIALIZER"), std::string::npos) << last_error();
}

TEST(NcclLater, SuspensionIsRefused) {
    const World world(1);
    EXPECT_EQ(ncclCommSuspend(world[0], NCCL_SUSPEND_MEM), +ncclInvalidUsage);
    EXPECT_NE(last_error().find("cannot be suspended"), std::string::npos) << last_error();
    EXPECT_EQ(ncclCommSuspend(world[0], 2), +ncclInvalidArgument);
    EXPECT_EQ(ncclCommResume(world[0]), +ncclInvalidUsage);
    EXPECT_EQ(ncclCommResume(nullptr), +ncclInvalidArgument);
    uint64_t value = 7;
    for (const int stat : {ncclStatGpuMemSuspend, ncclStatGpuMemSuspended}) {
        EXPECT_NCCL(ncclCommMemStats(world[0], stat, &value));
        EXPECT_EQ(value, 0u);
    }
    for (const int stat : {ncclStatGpuMemPersist, ncclStatGpuMemTotal})
        EXPECT_EQ(ncclCommMemStats(world[0], stat, &value), +ncclInvalidUsage);
    EXPECT_EQ(ncclCommMemStats(world[0], 4, &value), +ncclInvalidArgument);
    EXPECT_EQ(ncclCommMemStats(world[0], ncclStatGpuMemSuspend, nullptr), +ncclInvalidArgument);
    // The communicator is as good as new.
    expect_sum({world[0]}, {0});
}

TEST(NcclLater, OneSidedOperationsAreRefused) {
    const World world(2);
    const auto data = world.memory(64);
    void* own = data[0].data();
    EXPECT_EQ(ncclPutSignal(own, 1, ncclInt8, 1, nullptr, 0, 0, 0, 0, world[0], nullptr), +ncclInvalidUsage);
    EXPECT_EQ(
        last_error(),
        "ncclPutSignal: one-sided operations are not supported by this library. use ncclSend and ncclRecv");
    EXPECT_EQ(ncclWaitSignal(0, nullptr, world[0], nullptr), +ncclInvalidUsage);
    EXPECT_EQ(ncclSignal(1, 0, 0, 0, nullptr, nullptr), +ncclInvalidArgument);
    // As with everything else, nothing of a group runs in which one was called.
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_EQ(ncclSignal(1, 0, 0, 0, world[0], nullptr), +ncclInvalidUsage);
    EXPECT_EQ(ncclGroupEnd(), +ncclInvalidUsage);
}

TEST(NcclLater, ThereAreNoParameters) {
    ncclParamHandle_t handle = reinterpret_cast<ncclParamHandle_t>(&handle);
    EXPECT_EQ(ncclParamBind(&handle, "NCCL_ALGO"), +ncclInvalidArgument);
    EXPECT_EQ(last_error(),
              "ncclParamBind: unknown parameter 'NCCL_ALGO': this library has none of NCCL's parameters");
    EXPECT_EQ(handle, nullptr);
    EXPECT_EQ(ncclParamBind(nullptr, "NCCL_ALGO"), +ncclInvalidArgument);
    EXPECT_EQ(ncclParamBind(&handle, nullptr), +ncclInvalidArgument);
    int length = 7;
    const char* text = "";
    EXPECT_EQ(ncclParamGetParameter("NCCL_ALGO", &text, &length), +ncclInvalidArgument);
    EXPECT_EQ(text, nullptr);
    EXPECT_EQ(length, 0);
    const char** keys = nullptr;
    EXPECT_NCCL(ncclParamGetAllParameterKeys(&keys, &length));
    EXPECT_NE(keys, nullptr);
    EXPECT_EQ(length, 0);
    EXPECT_EQ(ncclParamGetAllParameterKeys(nullptr, &length), +ncclInvalidArgument);
    EXPECT_EQ(ncclParamGet(handle, &length, 4, &length), +ncclInvalidArgument);
    EXPECT_EQ(ncclParamGetStr(handle, &text), +ncclInvalidArgument);
    std::array<std::byte, 8> number{};
    const auto expect_none = [&](auto* get, auto* into) {
        EXPECT_EQ(get(handle, into), +ncclInvalidArgument);
    };
    expect_none(ncclParamGetI8, reinterpret_cast<int8_t*>(number.data()));
    expect_none(ncclParamGetU8, reinterpret_cast<uint8_t*>(number.data()));
    expect_none(ncclParamGetI16, reinterpret_cast<int16_t*>(number.data()));
    expect_none(ncclParamGetU16, reinterpret_cast<uint16_t*>(number.data()));
    expect_none(ncclParamGetI32, reinterpret_cast<int32_t*>(number.data()));
    expect_none(ncclParamGetU32, reinterpret_cast<uint32_t*>(number.data()));
    expect_none(ncclParamGetI64, reinterpret_cast<int64_t*>(number.data()));
    expect_none(ncclParamGetU64, reinterpret_cast<uint64_t*>(number.data()));
    EXPECT_EQ(last_error(),
              "ncclParamGetU64: unknown parameter handle: this library has none of NCCL's parameters");
    ncclParamDumpAll();
}

TEST(NcclLater, EncryptionIsRefused) {
    ncclEncryptionConfig_t config{sizeof config, NCCL_CONFIG_MAGIC, 23203, NCCL_ENCRYPTION_MODE_NONE,
                                  nullptr};
    EXPECT_NCCL(ncclSetEncryption(&config));
    config.mode = NCCL_ENCRYPTION_MODE_PSK;
    EXPECT_EQ(ncclSetEncryption(&config), +ncclInvalidUsage);
    EXPECT_NE(last_error().find("does not encrypt"), std::string::npos) << last_error();
    config.mode = 2;
    EXPECT_EQ(ncclSetEncryption(&config), +ncclInvalidArgument);
    config.magic = 0;
    EXPECT_EQ(ncclSetEncryption(&config), +ncclInvalidArgument);
    EXPECT_EQ(ncclSetEncryption(nullptr), +ncclInvalidArgument);
}

TEST(NcclLater, PointersForKernelsAreRefused) {
    const World world(1);
    const auto expect_refused = [](ncclResult_t result, const char* name) {
        EXPECT_EQ(result, +ncclInvalidUsage) << name;
        EXPECT_EQ(last_error().find(std::string(name) + ": communication from within kernels"), 0u)
            << last_error();
    };
    void* pointer = &pointer;
    expect_refused(ncclGetLsaDevicePointer(nullptr, 0, 0, &pointer), "ncclGetLsaDevicePointer");
    EXPECT_EQ(pointer, nullptr);
    pointer = &pointer;
    expect_refused(ncclGetPeerDevicePointer(nullptr, 0, 0, &pointer), "ncclGetPeerDevicePointer");
    EXPECT_EQ(pointer, nullptr);
    pointer = &pointer;
    expect_refused(ncclGetLsaMultimemDevicePointer(nullptr, 0, &pointer), "ncclGetLsaMultimemDevicePointer");
    EXPECT_EQ(pointer, nullptr);
    pointer = &pointer;
    expect_refused(ncclGetMultimemDevicePointer(nullptr, 0, nullptr, &pointer),
                   "ncclGetMultimemDevicePointer");
    EXPECT_EQ(pointer, nullptr);
    const ncclTeam_t team = ncclTeamWorld(world[0]);
    std::array<char, 256> storage{};
    std::size_t at = 0;
    expect_refused(ncclGinInboxA2ACreateRequirement(team, 1, 4, storage.data(), storage.data()),
                   "ncclGinInboxA2ACreateRequirement");
    expect_refused(ncclGinOutboxCreateRequirement(1, 4, storage.data(), storage.data()),
                   "ncclGinOutboxCreateRequirement");
    expect_refused(ncclGetMultimemDeviceLeInfo(nullptr, 0, storage.data(), &at),
                   "ncclGetMultimemDeviceLeInfo");
    expect_refused(ncclGetCftDeviceLeInfo(nullptr, 0, 0, team, storage.data(), &at),
                   "ncclGetCftDeviceLeInfo");
    expect_refused(ncclGetPeerDeviceLeInfo(nullptr, 0, 0, storage.data(), &at), "ncclGetPeerDeviceLeInfo");
    EXPECT_EQ(ncclTeamCft(world[0], 0).nRanks, 0);
    EXPECT_EQ(ncclTeamCftMultimem(world[0]).nRanks, 0);
}

}  // namespace
}  // namespace sidestep::nccl_test::later
