// Several lanes at once: where they are taken, what they reach, and where they never are.
#include "route/lanes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "offers.hpp"

namespace sidestep {
namespace {

using test::between_gpus;
using test::offers;
using test::request;

route::Request to_gpu(int gpu, Bytes bytes = 8_GiB) {
    return request(Place::host(), MemoryKind::pinned, Place::gpu(gpu), MemoryKind::device, bytes);
}

route::Request to_host(int gpu, Bytes bytes = 8_GiB) {
    return request(Place::gpu(gpu), MemoryKind::device, Place::host(), MemoryKind::pinned, bytes);
}

Route planned(const Topology& machine, route::Request asked, int lanes = 0) {
    asked.lanes = lanes;
    const auto plan = route::plan(machine, offers(), asked);
    EXPECT_TRUE(plan.ok()) << plan.error().to_string();
    return plan.ok() ? plan->route : Route{};
}

// Every kind of pair of a machine: of its first eight GPUs with the host, and of one on each socket with all
// others.
std::vector<route::Request> pairs_of(const Topology& machine, Bytes bytes) {
    std::vector<route::Request> all;
    const int gpus = std::min(machine.gpu_count(), 8);
    for (int a = 0; a < gpus; ++a) {
        all.push_back(to_gpu(a, bytes));
        all.push_back(to_host(a, bytes));
        for (int b = 0; b < gpus && (a == 0 || a == gpus - 1); ++b) {
            all.push_back(between_gpus(a, b));
            all.back().bytes = bytes;
        }
    }
    return all;
}

// Of a machine by name, and whether some of its copies take several lanes.
class LanesOf : public testing::TestWithParam<std::pair<const char*, bool>> {};

TEST_P(LanesOf, AreNeverSlowerThanTheBestSingleOne) {
    const Topology machine = Topology::model(GetParam().first).value();
    bool several = false;
    for (Bytes bytes = 4_KiB; bytes <= 4_GiB; bytes *= 16)
        for (const route::Request& asked : pairs_of(machine, bytes)) {
            const Route all = planned(machine, asked), one = planned(machine, asked, 1);
            ASSERT_EQ(one.lanes.size(), 1U);
            EXPECT_LE(all.expected_seconds, one.expected_seconds) << all.to_string();
            several = several || all.lanes.size() > 1;
        }
    EXPECT_EQ(several, GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(Machines, LanesOf,
                         testing::Values(std::pair("dgx-1v", true), std::pair("dgx-2", true),
                                         std::pair("dgx-a100", true), std::pair("dgx-h100", true),
                                         std::pair("dgx-b200", true), std::pair("gb200-tray", true),
                                         std::pair("mi300x", true), std::pair("pcie-4l40s", false),
                                         std::pair("pcie-2s", false), std::pair("laptop", false)));

TEST(Lanes, SmallCopiesTakeOne) {
    const Topology dgx = Topology::model("dgx-h100").value();
    EXPECT_EQ(planned(dgx, to_gpu(0, 1_MiB)).lanes.size(), 1U);
    EXPECT_GT(planned(dgx, to_gpu(0, 1_GiB)).lanes.size(), 1U);
}

// Four GPUs with a link each to the host, all joined through one NVSwitch.
Topology four_and_a_switch() {
    Topology::Parts parts;
    parts.name = "four";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    parts.devices.push_back({DeviceKind::nvswitch, 0, "nvswitch:0", "", "", -1, 0});
    for (int i = 0; i < 4; ++i) {
        parts.devices.push_back({DeviceKind::gpu, i, "gpu:" + std::to_string(i), "", "", 0, 1_GiB});
        parts.links.push_back({0, static_cast<DeviceId>(i + 2), LinkKind::pcie, 16, 60, 0.5});
        parts.links.push_back({1, static_cast<DeviceId>(i + 2), LinkKind::nvlink, 18, 400, 0.3});
    }
    return *Topology::create(std::move(parts));
}

TEST(Lanes, FeedAGpuThroughItsNeighboursLinks) {
    const Topology machine = four_and_a_switch();
    for (const Route& route : {planned(machine, to_gpu(2)), planned(machine, to_host(2))}) {
        ASSERT_EQ(route.lanes.size(), 4U) << route.to_string();
        EXPECT_NEAR(route.expected_gb_per_s, 4 * 54, 1e-6);
        EXPECT_EQ(route.lanes[0].hops.size(), 1U) << "the direct one first";
        for (std::size_t lane = 1; lane < 4; ++lane) {
            ASSERT_EQ(route.lanes[lane].hops.size(), 2U);
            EXPECT_TRUE(route.lanes[lane].hops[0].to.is_gpu());
            EXPECT_NEAR(route.lanes[lane].share, 0.25, 0.01);
            EXPECT_EQ(route.lanes[lane].hops.front().from, route.from);
            EXPECT_EQ(route.lanes[lane].hops.back().to, route.to);
        }
    }
}

TEST(Lanes, ThroughOneSwitchTwoGpusGainNothingFromEachOther) {
    const Route route = planned(four_and_a_switch(), between_gpus(0, 1));
    EXPECT_EQ(route.lanes.size(), 1U) << route.to_string();
    EXPECT_TRUE(refuses(route, "gpu:0 -> gpu:2 -> gpu:1", "as a further lane, no gain")) << route.to_string();
}

TEST(Lanes, BoundsAreKept) {
    const Topology machine = four_and_a_switch();
    const Route one = planned(machine, to_gpu(0), 1);
    EXPECT_EQ(one.lanes.size(), 1U);
    EXPECT_TRUE(refuses(one, "host -> gpu:1 -> gpu:0", "not tried as a further lane")) << one.to_string();
    EXPECT_EQ(planned(machine, to_gpu(0), 2).lanes.size(), 2U);
    EXPECT_EQ(planned(machine, to_gpu(0), 9).lanes.size(), 4U);
    route::Request little = to_gpu(0);
    little.max_staging = 2 * route::min_lane_chunk;
    EXPECT_EQ(planned(machine, little).lanes.size(), 2U) << "memory for one ring";
    little.max_staging = 0;
    EXPECT_EQ(planned(machine, little).lanes.size(), 1U);
    route::Request direct = to_gpu(0);
    direct.require = Require::direct;
    EXPECT_TRUE(planned(machine, direct).direct());
    EXPECT_EQ(planned(machine, direct).lanes.size(), 1U);
}

TEST(Lanes, AGpuThatLendsNoMemoryIsLeftOutAndNamed) {
    route::Request asked = to_gpu(0);
    asked.relay_memory = {{1, 64_MiB}, {2, 0}};
    const Route route = planned(four_and_a_switch(), asked);
    EXPECT_EQ(route.lanes.size(), 3U);
    EXPECT_TRUE(refuses(route, "host -> gpu:2 -> gpu:0", "gpu:2 lends copies of others no memory"))
        << route.to_string();
}

TEST(Lanes, PageableMemoryAndFilesKeepToOne) {
    const Topology machine = four_and_a_switch();
    const auto pageable =
        request(Place::host(), MemoryKind::pageable, Place::gpu(0), MemoryKind::device, 8_GiB);
    const auto file =
        request(Place::file("/x"), MemoryKind::storage, Place::gpu(0), MemoryKind::device, 8_GiB);
    EXPECT_EQ(planned(machine, pageable).lanes.size(), 1U);
    EXPECT_EQ(planned(machine, file).lanes.size(), 1U);
}

TEST(Lanes, NeverOnMachinesWithPcieAlone) {
    for (const char* name : {"pcie-4l40s", "pcie-2s", "laptop"}) {
        const Topology machine = Topology::model(name).value();
        for (const route::Request& asked : pairs_of(machine, 4_GiB))
            EXPECT_EQ(planned(machine, asked).lanes.size(), 1U) << name;
    }
}

// Two GPUs below one PCIe switch share the way up: the neighbour's link is no further way in. Of the other
// pairs below one switch, one GPU is.
TEST(Lanes, SharedPcieSwitchesAreCountedOnce) {
    const Topology dgx1 = Topology::model("dgx-1v").value();
    const Route route = planned(dgx1, to_gpu(0));
    std::vector<int> through;
    for (const Lane& lane : route.lanes)
        through.push_back(lane.hops.size() == 1 ? 0 : lane.hops[0].to.index());
    std::sort(through.begin(), through.end());
    ASSERT_GE(through.size(), 3U) << route.to_string();
    EXPECT_EQ(std::count(through.begin(), through.end(), 1), 0) << "gpu:1 hangs off gpu:0's switch";
    EXPECT_EQ(std::count(through.begin(), through.end(), 2) + std::count(through.begin(), through.end(), 3),
              1);
}

// NVLinks between the GPUs of a DGX-1 V100, as several independent `nvidia-smi topo -m` matrices of such
// machines show them (nccl#671 holds one).
constexpr int links[8][8] = {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0}, {1, 2, 0, 2, 0, 0, 1, 0},
                             {2, 1, 2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                             {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};

TEST(Lanes, HybridCubeMeshRatesAreThoseOfTheLinkMatrix) {
    const Topology dgx1 = Topology::model("dgx-1v").value();
    // What NVLink 2 and PCIe gen3 x16 carry, and the copy engine's share of it.
    const double of_a_link = 47.9 / 2 * test::for_share(LinkKind::nvlink, 0.8);
    const double of_the_host = 12.15 * test::for_share(LinkKind::pcie, 0.9);
    for (int a = 0; a < 8; ++a)
        for (int b = 0; b < 8; ++b) {
            if (a == b) continue;
            int widest = links[a][b], all = links[a][b];
            for (int relay = 0; relay < 8; ++relay) {
                const int through = std::min(links[a][relay], links[relay][b]);
                widest = std::max(widest, through);
                all += through;
            }
            route::Request asked = between_gpus(a, b);
            asked.bytes = 4_GiB;
            const Route one = planned(dgx1, asked, 1), several = planned(dgx1, asked);
            EXPECT_NEAR(one.expected_gb_per_s, widest * of_a_link, 0.02 * of_a_link) << a << " " << b;
            EXPECT_NEAR(several.expected_gb_per_s, all * of_a_link, 0.02 * of_a_link) << several.to_string();
            EXPECT_GT(one.expected_gb_per_s, of_the_host);
            for (const Lane& lane : several.lanes)
                for (const Hop& hop : lane.hops) EXPECT_TRUE(hop.to.is_gpu()) << several.to_string();
        }
}

// The eight of an MI300X platform are all joined: the direct link and six detours, and never the host.
TEST(Lanes, BetweenGpusTheHostIsNoFurtherLane) {
    const Topology machine = Topology::model("mi300x").value();
    const Route route = planned(machine, between_gpus(0, 1));
    EXPECT_EQ(route.lanes.size(), 7U) << route.to_string();
    for (const Lane& lane : route.lanes)
        for (const Hop& hop : lane.hops) EXPECT_TRUE(hop.to.is_gpu()) << route.to_string();
}

// Beside an NVLink, a detour over PCIe would take the links that host copies need.
TEST(Lanes, BetweenGpusPcieIsNoFurtherLane) {
    Topology::Parts parts;
    parts.name = "bridge";
    parts.pcie_peers = PathClass::pxb;
    parts.devices = {{DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0},
                     {DeviceKind::pcie_switch, 0, "pcie_switch:0", "", "", 0, 0}};
    parts.links = {{0, 1, LinkKind::pcie, 16, 60, 0.5}};
    for (int i = 0; i < 3; ++i) {
        parts.devices.push_back({DeviceKind::gpu, i, "gpu:" + std::to_string(i), "", "", 0, 1_GiB});
        parts.links.push_back({1, static_cast<DeviceId>(i + 2), LinkKind::pcie, 16, 60, 0.5});
    }
    parts.links.push_back({2, 3, LinkKind::nvlink, 4, 100, 0.3});
    const Topology machine = *Topology::create(std::move(parts));
    const Route route = planned(machine, between_gpus(0, 1));
    EXPECT_EQ(route.lanes.size(), 1U) << route.to_string();
    EXPECT_EQ(planned(machine, between_gpus(0, 2)).lanes.size(), 1U);
}

TEST(Lanes, SharesSumToOneAndFollowTheRates) {
    const Route route = planned(Topology::model("dgx-1v").value(), between_gpus(0, 3));
    ASSERT_EQ(route.lanes.size(), 3U);
    double shares = 0, rates = 0;
    for (const Lane& lane : route.lanes) {
        shares += lane.share;
        rates += lane.gb_per_s;
    }
    EXPECT_NEAR(shares, 1, 1e-9);
    EXPECT_NEAR(rates, route.expected_gb_per_s, 1e-9);
    EXPECT_NEAR(route.lanes[0].share, 0.5, 0.05) << "two of four links";
}

}  // namespace
}  // namespace sidestep
