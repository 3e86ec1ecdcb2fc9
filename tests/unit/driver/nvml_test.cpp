#include "driver/nvml.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "driver/dynamic_library.hpp"

// The made-up libraries that the build made of fake_nvml_library.cpp.
#ifndef SIDESTEP_FAKE_NVML
#error "SIDESTEP_FAKE_NVML is the path of the made-up library"
#endif

namespace sidestep::driver {
namespace {

const std::string library = SIDESTEP_FAKE_NVML;
const std::string old_library = SIDESTEP_FAKE_NVML_OLD;
const std::string broken_library = SIDESTEP_FAKE_NVML_BROKEN;

std::unique_ptr<Nvml> load(const std::string& path) {
    auto nvml = load_nvml(path);
    EXPECT_TRUE(nvml.ok()) << nvml.error().to_string();
    return nvml.ok() ? std::move(*nvml) : nullptr;
}

// The made-up libraries lie in the build folder: a bundle that was carried elsewhere goes without.
class NvmlLibrary : public testing::Test {
protected:
    void SetUp() override {
        if (!std::filesystem::exists(library))
            GTEST_SKIP() << library << " is not here, only where it was built";
    }
};

TEST_F(NvmlLibrary, SaysWhyItIsNotThere) {
    const auto absent = load_nvml("libno-such-nvml.so.1");
    ASSERT_FALSE(absent.ok());
    EXPECT_EQ(absent.error().code, ErrorCode::unsupported);
    EXPECT_EQ(absent.error().message, "libno-such-nvml.so.1 was not found: no NVIDIA driver");

    const auto broken = load_nvml(broken_library);
    ASSERT_FALSE(broken.ok());
    EXPECT_EQ(broken.error().code, ErrorCode::unsupported);
    EXPECT_NE(broken.error().message.find("has no function nvmlDeviceGetPciInfo_v3"), std::string::npos);
}

TEST_F(NvmlLibrary, SaysWhyItDoesNotStart) {
    ::setenv("FAKE_NVML_INIT", "9", 1);
    const auto stopped = load_nvml(library);
    const auto wordless = load_nvml(old_library);
    ::unsetenv("FAKE_NVML_INIT");
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().code, ErrorCode::unsupported);
    EXPECT_EQ(stopped.error().message, "NVML cannot start: Driver Not Loaded (code 9)");
    EXPECT_FALSE(stopped.error().hint.empty());
    ASSERT_FALSE(wordless.ok());
    EXPECT_EQ(wordless.error().message, "NVML cannot start: no words (code 9)");
}

TEST_F(NvmlLibrary, ShutsDownWhatItStarted) {
    int (*users)() = nullptr;
    auto same = DynamicLibrary::open(library);
    ASSERT_TRUE(same.ok());
    ASSERT_TRUE(same->bind(users, "fake_nvml_users").ok());
    ASSERT_EQ(users(), 0);
    {
        const auto nvml = load(library);
        EXPECT_EQ(users(), 1);
    }
    EXPECT_EQ(users(), 0);
}

TEST_F(NvmlLibrary, ReadsTheGpus) {
    const auto nvml = load(library);
    EXPECT_EQ(nvml->driver_version(), "580.1");
    EXPECT_EQ(*nvml->gpu_count(), 3);

    const auto first = nvml->gpu(0);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(first->name, "Fake GPU 0");
    EXPECT_EQ(first->uuid, "GPU-0");
    EXPECT_EQ(first->bus_id, "0000:1b:0a.0");
    EXPECT_EQ(first->memory, 1000U);
    EXPECT_EQ(first->bar1, 2000U);
    EXPECT_EQ(first->cc_major, 9);
    EXPECT_EQ(first->pcie_generation, 5);
    EXPECT_EQ(first->pcie_width, 16);
    EXPECT_EQ(first->numa_node, -1);

    EXPECT_EQ(first->pcie_generation_now, 1);
    EXPECT_EQ(first->pcie_width_now, 8);
    EXPECT_EQ(first->pcie_replays, 7U);
    EXPECT_EQ(first->mig, false);
    EXPECT_EQ(first->virtualization, NvmlVirtualization::passthrough);
    EXPECT_EQ(first->c2c_links, 2) << "one of three is down";
    EXPECT_DOUBLE_EQ(first->c2c_gb_per_s, 90);

    const auto second = nvml->gpu(1);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(second->mig, true);
    EXPECT_EQ(second->c2c_links, 0);
    EXPECT_FALSE(second->virtualization) << "a mode that is not known";
    EXPECT_EQ(second->bus_id, "10000:1c:0a.0") << "a domain of five digits";
    EXPECT_EQ(second->numa_node, 3);

    const auto third = nvml->gpu(2);
    ASSERT_TRUE(third.ok()) << "what it refuses stays empty";
    EXPECT_EQ(third->name, std::string(96, 'x'));
    EXPECT_EQ(third->memory, 0U);
    EXPECT_EQ(third->bar1, 0U);
    EXPECT_EQ(third->pcie_generation, 0);
    EXPECT_FALSE(third->mig);
    EXPECT_FALSE(third->pcie_replays);

    EXPECT_EQ(nvml->gpu(3).error().code, ErrorCode::device_error);
    EXPECT_EQ(nvml->gpu(3).error().where, "gpu:3");
    EXPECT_EQ(nvml->gpu(-1).error().code, ErrorCode::invalid_argument);
}

TEST_F(NvmlLibrary, ReadsCountersOfErrors) {
    const auto nvml = load(library);
    const auto first = nvml->counters(0);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(first->ecc_corrected, 50U);
    EXPECT_EQ(first->ecc_uncorrected, 2U);
    EXPECT_EQ(first->remapped_rows, 7U);
    EXPECT_EQ(first->remap_pending, true);
    EXPECT_EQ(first->remap_failed, false);
    EXPECT_EQ(first->slowed_by, 0x41U);
    const auto told = nvml->links(0)->size() - 1;  // the second one does not tell
    EXPECT_EQ(first->nvlink_crc_errors, 10U * told);
    EXPECT_EQ(first->nvlink_replays, 10U * told);
    EXPECT_EQ(first->nvlink_recoveries, 0U);
    EXPECT_FALSE(nvml->counters(1)->remapped_rows);
    const auto third = nvml->counters(2);
    ASSERT_TRUE(third.ok()) << "what it refuses stays empty";
    EXPECT_FALSE(third->ecc_uncorrected || third->slowed_by || third->nvlink_crc_errors);
    EXPECT_FALSE(nvml->counters(-1).ok());
}

TEST_F(NvmlLibrary, ReadsTheFabricAndTheModeOfTheMachine) {
    const auto nvml = load(library);
    const auto fabric = nvml->fabric(0);
    ASSERT_TRUE(fabric.ok()) << fabric.error().to_string();
    EXPECT_EQ(fabric->state, FabricState::completed);
    EXPECT_EQ(fabric->cluster_uuid, "abababababababababababababababab");
    EXPECT_EQ(fabric->clique, 32766U);
    EXPECT_EQ(fabric->health, 2U);
    EXPECT_EQ(nvml->fabric(2).error().code, ErrorCode::unsupported);
    EXPECT_EQ(*nvml->confidential_computing(), true);

    const auto old = load(old_library);
    EXPECT_EQ(old->fabric(0).error().code, ErrorCode::unsupported);
    EXPECT_EQ(old->confidential_computing().error().code, ErrorCode::unsupported);
}

TEST_F(NvmlLibrary, ReadsNvlinks) {
    const auto nvml = load(library);
    const auto hopper = nvml->links(0);
    ASSERT_TRUE(hopper.ok());
    ASSERT_EQ(hopper->size(), 4U);
    EXPECT_FALSE((*hopper)[0].active);
    EXPECT_TRUE((*hopper)[1].active);
    EXPECT_TRUE((*hopper)[2].active) << "asleep";
    EXPECT_FALSE((*hopper)[3].active);
    EXPECT_EQ((*hopper)[1].remote, NvlinkRemote::nvswitch);
    EXPECT_EQ((*hopper)[1].remote_bus_id, "") << "all ones: hidden";
    EXPECT_DOUBLE_EQ((*hopper)[1].gb_per_s, 26.562);

    const auto ampere = nvml->links(1);
    ASSERT_TRUE(ampere.ok());
    ASSERT_EQ(ampere->size(), 2U);
    EXPECT_TRUE((*ampere)[0].active);
    EXPECT_FALSE((*ampere)[1].active);
    EXPECT_EQ((*ampere)[0].remote, NvlinkRemote::gpu);
    EXPECT_EQ((*ampere)[0].remote_bus_id, "0000:1b:0a.0");
    EXPECT_DOUBLE_EQ((*ampere)[0].gb_per_s, 25.781) << "from the common field, of another type";

    const auto none = nvml->links(2);
    ASSERT_TRUE(none.ok());
    EXPECT_TRUE(none->empty());
    EXPECT_FALSE(nvml->links(9).ok());
}

TEST_F(NvmlLibrary, ReadsPairs) {
    const auto nvml = load(library);
    EXPECT_EQ(*nvml->p2p(0, 1, P2pCapability::read), P2pStatus::ok);
    EXPECT_EQ(*nvml->p2p(0, 1, P2pCapability::atomics), P2pStatus::not_supported);
    EXPECT_EQ(*nvml->p2p(0, 2, P2pCapability::read), P2pStatus::unknown) << "a status of the future";
    const auto refused = nvml->p2p(2, 0, P2pCapability::read);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
    EXPECT_EQ(refused.error().where, "gpu:2 to gpu:0");

    EXPECT_EQ(*nvml->common_ancestor(0, 0), CommonAncestor::internal);
    EXPECT_EQ(*nvml->common_ancestor(0, 1), CommonAncestor::numa_node);
    EXPECT_FALSE(nvml->common_ancestor(0, 2).ok());
}

TEST_F(NvmlLibrary, DoesWithoutWhatOlderDriversLack) {
    const auto nvml = load(old_library);
    EXPECT_EQ(nvml->driver_version(), "");
    const auto gpu = nvml->gpu(0);
    ASSERT_TRUE(gpu.ok());
    EXPECT_EQ(gpu->memory, 0U);
    const auto links = nvml->links(1);
    ASSERT_TRUE(links.ok());
    ASSERT_EQ(links->size(), 2U) << "counted by asking for each";
    EXPECT_TRUE((*links)[0].active);
    EXPECT_EQ((*links)[0].remote, NvlinkRemote::unknown);
    EXPECT_EQ((*links)[0].gb_per_s, 0);
    EXPECT_EQ(nvml->p2p(0, 1, P2pCapability::read).error().code, ErrorCode::unsupported);
}

TEST(Nvml, KnowsNvlinkRatesByGeneration) {
    EXPECT_EQ(nvlink_gb_per_s(9, 0), 26.5625);
    EXPECT_EQ(nvlink_gb_per_s(8, 0), 25);
    EXPECT_EQ(nvlink_gb_per_s(8, 6), 14.0625);
    EXPECT_EQ(nvlink_gb_per_s(8, 9), 0) << "Ada has none";
    EXPECT_EQ(nvlink_gb_per_s(10, 0), 53.125);
    EXPECT_EQ(nvlink_gb_per_s(7, 0), 25);
    EXPECT_EQ(nvlink_gb_per_s(7, 5), 25);
    EXPECT_EQ(nvlink_gb_per_s(6, 0), 20);
    EXPECT_EQ(nvlink_gb_per_s(6, 1), 0);
    EXPECT_EQ(nvlink_gb_per_s(99, 0), 0);
}

}  // namespace
}  // namespace sidestep::driver
