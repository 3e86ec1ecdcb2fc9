// Communicators of NCCL_CTA_POLICY_ZERO: copy engines carry what they can, kernels the rest.
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "tests/nccl/world.hpp"

namespace sidestep::nccl_test::copy_engines {
namespace {

std::vector<ncclComm_t> make(int ranks, int policy) {
    ncclConfig_t config = default_config();
    config.CTAPolicy = policy;
    const ncclUniqueId id = new_id();
    std::vector<ncclComm_t> comms(static_cast<std::size_t>(ranks));
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_NCCL(sidestepNcclSetDevice(rank));
        EXPECT_NCCL(ncclCommInitRankConfig(&comms[static_cast<std::size_t>(rank)], ranks, id, rank, &config));
    }
    EXPECT_NCCL(ncclGroupEnd());
    return comms;
}

// Microseconds that the calls would take: another figure for each way to carry them.
template <typename Calls>
float expected_us(Calls calls) {
    EXPECT_NCCL(ncclGroupStart());
    calls();
    ncclSimInfo_t info{sizeof(ncclSimInfo_t), NCCL_SIM_INFO_MAGIC, NCCL_VERSION_CODE, 0};
    EXPECT_NCCL(ncclGroupSimulateEnd(&info));
    return info.estimatedTime;
}
float all_gather_us(ncclComm_t comm, const Memory& memory) {
    return expected_us(
        [&] { EXPECT_NCCL(ncclAllGather(memory.data(), memory.at(4096), 100, ncclFloat32, comm, nullptr)); });
}
float all_reduce_us(ncclComm_t comm, const Memory& memory) {
    return expected_us([&] {
        EXPECT_NCCL(ncclAllReduce(memory.data(), memory.data(), 100, ncclFloat32, ncclSum, comm, nullptr));
    });
}
float pair_us(ncclComm_t comm, const Memory& memory) {
    return expected_us([&] {
        EXPECT_NCCL(ncclSend(memory.data(), 100, ncclFloat32, 1, comm, nullptr));
        EXPECT_NCCL(ncclRecv(memory.at(4096), 100, ncclFloat32, 1, comm, nullptr));
    });
}

TEST(NcclCopyEngines, WhoCarriesWhat) {
    const Memory memory(0, std::size_t{1} << 16);
    const auto plain = make(3, NCCL_CONFIG_UNDEF_INT);
    for (const int policy : {NCCL_CTA_POLICY_ZERO, NCCL_CTA_POLICY_ZERO | 1}) {
        const auto zero = make(3, policy);
        EXPECT_NE(all_gather_us(zero[0], memory), all_gather_us(plain[0], memory));
        EXPECT_EQ(all_reduce_us(zero[0], memory), all_reduce_us(plain[0], memory));
        EXPECT_EQ(pair_us(zero[0], memory), pair_us(plain[0], memory));
        destroy(zero);
    }
    const auto efficiency = make(3, 1);
    EXPECT_EQ(all_gather_us(efficiency[0], memory), all_gather_us(plain[0], memory));
    destroy(efficiency);
    destroy(plain);
}

TEST(NcclCopyEngines, TheEnvironmentGoesBeforeTheProgram) {
    const Memory memory(0, std::size_t{1} << 16);
    const auto gather_us = [&](const char* environment, int policy) {
        if (environment != nullptr) ::setenv("NCCL_CTA_POLICY", environment, 1);
        const auto comms = make(2, policy);
        ::unsetenv("NCCL_CTA_POLICY");
        const float us = all_gather_us(comms[0], memory);
        destroy(comms);
        return us;
    };
    const float kernels = gather_us(nullptr, 0), engines = gather_us(nullptr, NCCL_CTA_POLICY_ZERO);
    EXPECT_NE(kernels, engines);
    EXPECT_EQ(gather_us("2", 0), engines);
    EXPECT_EQ(gather_us("2", NCCL_CONFIG_UNDEF_INT), engines);
    EXPECT_EQ(gather_us("0", NCCL_CTA_POLICY_ZERO), kernels);
    // What is not a policy counts for nothing, and the log says so.
    for (const char* wrong : {"zero", "-1", "4", "2 ", "99999999999"}) {
        ::testing::internal::CaptureStderr();
        EXPECT_EQ(gather_us(wrong, NCCL_CTA_POLICY_ZERO), engines) << wrong;
        EXPECT_EQ(gather_us(wrong, NCCL_CONFIG_UNDEF_INT), kernels) << wrong;
        const std::string log = ::testing::internal::GetCapturedStderr();
        EXPECT_NE(log.find(fmt::format("sidestep: warn: NCCL_CTA_POLICY={} is ignored", wrong)),
                  std::string::npos)
            << log;
    }
    EXPECT_EQ(gather_us("", NCCL_CTA_POLICY_ZERO), engines);
    ::setenv("NCCL_CTA_POLICY", "2", 1);
    std::vector<ncclComm_t> comms(2);
    EXPECT_NCCL(ncclCommInitAll(comms.data(), 2, nullptr));
    ::unsetenv("NCCL_CTA_POLICY");
    EXPECT_EQ(all_gather_us(comms[0], memory), engines);
    destroy(comms);
}

TEST(NcclCopyEngines, ChildrenInheritIt) {
    const Memory memory(0, std::size_t{1} << 16);
    const auto parents = make(3, NCCL_CTA_POLICY_ZERO);
    const auto plain = make(3, NCCL_CONFIG_UNDEF_INT);
    // A configuration is taken for itself, whatever it leaves open.
    ncclConfig_t without = default_config(), open = default_config();
    without.CTAPolicy = 0;
    for (ncclConfig_t* config : {static_cast<ncclConfig_t*>(nullptr), &without, &open}) {
        std::vector<ncclComm_t> children(3);
        ASSERT_NCCL(ncclGroupStart());
        for (std::size_t r = 0; r < 3; ++r)
            EXPECT_NCCL(ncclCommSplit(parents[r], 0, static_cast<int>(r), &children[r], config));
        ASSERT_NCCL(ncclGroupEnd());
        EXPECT_EQ(all_gather_us(children[0], memory) != all_gather_us(plain[0], memory), config == nullptr);
        expect_sum(children, {0, 1, 2});
        destroy(children);
    }
    destroy(plain);
    destroy(parents);
}

// Each step takes what the one before has left, so that the order counts: copied, combined, copied, sent.
TEST(NcclCopyEngines, BothKindsInOneGroup) {
    constexpr int ranks = 3;
    constexpr std::size_t count = 1000;
    const auto comms = make(ranks, NCCL_CTA_POLICY_ZERO);
    std::vector<Memory> own, gathered, swapped, last;
    for (int rank = 0; rank < ranks; ++rank) {
        own.emplace_back(rank, encode(ncclFloat32, std::vector<double>(count, rank + 1)));
        gathered.emplace_back(rank, ranks * count * 4);
        swapped.emplace_back(rank, ranks * count * 4);
        last.emplace_back(rank, count * 4);
    }
    for (int turn = 0; turn < 20; ++turn) {
        ASSERT_NCCL(ncclGroupStart());
        for (std::size_t r = 0; r < ranks; ++r) {
            const int rank = static_cast<int>(r);
            EXPECT_NCCL(
                ncclAllGather(own[r].data(), gathered[r].data(), count, ncclFloat32, comms[r], nullptr));
            EXPECT_NCCL(ncclAllReduce(gathered[r].data(), gathered[r].data(), ranks * count, ncclFloat32,
                                      ncclSum, comms[r], nullptr));
            EXPECT_NCCL(
                ncclAlltoAll(gathered[r].data(), swapped[r].data(), count, ncclFloat32, comms[r], nullptr));
            EXPECT_NCCL(
                ncclSend(swapped[r].data(), count, ncclFloat32, (rank + 1) % ranks, comms[r], nullptr));
            EXPECT_NCCL(
                ncclRecv(last[r].data(), count, ncclFloat32, (rank + ranks - 1) % ranks, comms[r], nullptr));
        }
        ASSERT_NCCL(ncclGroupEnd());
        for (std::size_t r = 0; r < ranks; ++r) {
            // Block b of everybody's gathered is 3 * (b + 1), and rank r gets block r of all.
            EXPECT_EQ(decode(ncclFloat32, swapped[r].data(), ranks * count),
                      std::vector<double>(ranks * count, 3.0 * static_cast<double>(r + 1)));
            EXPECT_EQ(decode(ncclFloat32, last[r].data(), count),
                      std::vector<double>(count, 3.0 * static_cast<double>((r + ranks - 1) % ranks + 1)));
            std::memset(swapped[r].data(), 0, ranks * count * 4);
        }
    }
    destroy(comms);
}

TEST(NcclCopyEngines, AbortOfAStuckCopyByAnotherThread) {
    const auto comms = make(2, NCCL_CTA_POLICY_ZERO);
    Memory memory(0, std::size_t{800}), other(1, std::size_t{800});
    ncclResult_t result = ncclSuccess;
    std::string words;
    // The other rank takes part in the first of two.
    std::thread stuck([&] {
        EXPECT_NCCL(ncclGroupStart());
        for (int turn = 0; turn < 2; ++turn)
            EXPECT_NCCL(ncclAllGather(memory.data(), memory.data(), 100, ncclFloat32, comms[0], nullptr));
        result = ncclGroupEnd();
        words = last_error();
    });
    EXPECT_NCCL(ncclAllGather(other.at(400), other.data(), 100, ncclFloat32, comms[1], nullptr));
    EXPECT_NCCL(ncclCommAbort(comms[0]));
    stuck.join();
    EXPECT_NE(result, +ncclSuccess);
    EXPECT_NE(words.find("ncclCommAbort"), std::string::npos) << words;
    // The other one hears of it, in whatever it calls next.
    EXPECT_NE(settled(comms[1]), +ncclInProgress);
    while (ncclAllReduce(other.data(), other.data(), 1, ncclFloat32, ncclSum, comms[1], nullptr) ==
           ncclSuccess) {
    }
    EXPECT_NCCL(ncclCommAbort(comms[1]));
}

// Where not all ask for it, the one that does says who did not.
TEST(NcclCopyEngines, AskedForByOneRankAlone) {
    const std::string timeout = std::getenv("SIDESTEP_GROUP_TIMEOUT");
    ::setenv("SIDESTEP_GROUP_TIMEOUT", "1", 1);
    ncclConfig_t config = default_config();
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    const ncclUniqueId id = new_id();
    ncclComm_t plain = nullptr;
    std::thread without([&] {
        ASSERT_NCCL(sidestepNcclSetDevice(1));
        EXPECT_NCCL(ncclCommInitRank(&plain, 2, id, 1));
    });
    ASSERT_NCCL(sidestepNcclSetDevice(0));
    ncclComm_t zero = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&zero, 2, id, 0, &config), +ncclRemoteError);
    EXPECT_NE(last_error().find("rank 1"), std::string::npos) << last_error();
    EXPECT_NE(last_error().find("NCCL_CTA_POLICY_ZERO"), std::string::npos) << last_error();
    EXPECT_EQ(zero, nullptr);
    without.join();
    EXPECT_NCCL(ncclCommAbort(plain));
    ::setenv("SIDESTEP_GROUP_TIMEOUT", timeout.c_str(), 1);
}

}  // namespace
}  // namespace sidestep::nccl_test::copy_engines
