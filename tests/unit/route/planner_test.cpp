// Planning over small made-up machines: what is chosen, what is refused, and with which words.
#include "route/planner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "offers.hpp"

namespace sidestep {
namespace {

using test::between_gpus;
using test::offers;
using test::request;

// Four GPUs on one host; NVLink between 0-1, 1-2 and 2-3 only.
Topology chain() {
    Topology::Parts parts;
    parts.name = "chain";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    for (int i = 0; i < 4; ++i) {
        parts.devices.push_back({DeviceKind::gpu, i, "gpu:" + std::to_string(i), "", "", 0, 1_GiB});
        parts.links.push_back({0, static_cast<DeviceId>(i + 1), LinkKind::pcie, 16, 60, 0.5});
        if (i > 0)
            parts.links.push_back(
                {static_cast<DeviceId>(i), static_cast<DeviceId>(i + 1), LinkKind::nvlink, 3, 100, 0.3});
    }
    return *Topology::create(std::move(parts));
}

TEST(Planner, LinkedGpusTakeTheLink) {
    const auto plan = route::plan(chain(), offers(), between_gpus(0, 1));
    ASSERT_TRUE(plan) << plan.error().to_string();
    ASSERT_EQ(plan->route.lanes.size(), 1u);
    ASSERT_EQ(plan->route.lanes[0].hops.size(), 1u);
    EXPECT_EQ(plan->route.lanes[0].hops[0].engine, "copy engine");
    EXPECT_DOUBLE_EQ(plan->route.expected_gb_per_s, 80);
    EXPECT_TRUE(plan->route.direct());
    EXPECT_TRUE(refuses(plan->route, "by cuda kernel", "kernel")) << plan->route.to_string();
    EXPECT_TRUE(refuses(plan->route, "-> host:0 ->", "2 copies through host memory"))
        << plan->route.to_string();
}

TEST(Planner, UnlinkedGpusGoThroughANeighbourNotTheHost) {
    const auto plan = route::plan(chain(), offers(), between_gpus(0, 2));
    ASSERT_TRUE(plan);
    ASSERT_EQ(plan->route.lanes[0].hops.size(), 2u);
    EXPECT_EQ(plan->route.lanes[0].hops[0].to, Place::gpu(1));
    EXPECT_DOUBLE_EQ(plan->route.expected_gb_per_s, 80);
    EXPECT_TRUE(refuses(plan->route, "gpu:0 -> gpu:2", "")) << plan->route.to_string();
}

TEST(Planner, GpusWithoutACommonNeighbourGoThroughTheHost) {
    const auto plan = route::plan(chain(), offers(), between_gpus(0, 3));
    ASSERT_TRUE(plan);
    ASSERT_EQ(plan->route.lanes[0].hops.size(), 2u);
    EXPECT_EQ(plan->route.lanes[0].hops[0].to, Place::host(0));
    EXPECT_DOUBLE_EQ(plan->route.expected_gb_per_s, 54);  // PCIe up and down are different directions
}

TEST(Planner, PageableMemoryIsStagedAndSaysWhy) {
    const auto plan = route::plan(
        chain(), offers(), request(Place::host(), MemoryKind::pageable, Place::gpu(1), MemoryKind::device));
    ASSERT_TRUE(plan);
    ASSERT_EQ(plan->route.lanes[0].hops.size(), 2u);
    EXPECT_EQ(plan->route.lanes[0].hops[0].to_memory, MemoryKind::pinned);
    EXPECT_DOUBLE_EQ(plan->route.expected_gb_per_s, 40);
    EXPECT_TRUE(refuses(plan->route, "by cuda copy engine", "cannot read pageable memory"));
    EXPECT_FALSE(plan->route.refused[0].remedy.empty());
}

TEST(Planner, FilesReachGpusThroughTheHostAndNameTheMissingDirectPath) {
    const auto plan =
        route::plan(chain(), offers(),
                    request(Place::file("/x"), MemoryKind::storage, Place::gpu(0), MemoryKind::device));
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->route.lanes[0].hops[0].backend, "file");
    EXPECT_EQ(plan->route.lanes[0].hops[1].backend, "cuda");
    EXPECT_DOUBLE_EQ(plan->route.expected_gb_per_s, 5);
    EXPECT_TRUE(refuses(plan->route, "cufile direct storage", "not part of this build"));
}

TEST(Planner, RequireDirectFailsWithEveryReason) {
    auto asked = request(Place::file("/x"), MemoryKind::storage, Place::gpu(0), MemoryKind::device);
    asked.require = Require::direct;
    const auto plan = route::plan(chain(), offers(), asked);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, ErrorCode::path_unavailable);
    EXPECT_NE(plan.error().message.find("not part of this build"), std::string::npos) << plan.error().message;
    EXPECT_NE(plan.error().message.find("a direct path is required"), std::string::npos);
}

TEST(Planner, AnUnusableBackendGivesItsReasonAndRemedy) {
    const auto plan = route::plan(chain(), offers(false), between_gpus(0, 1));
    ASSERT_FALSE(plan);
    EXPECT_NE(plan.error().message.find("no NVIDIA driver"), std::string::npos);
    EXPECT_EQ(plan.error().hint, "install one");
}

TEST(Planner, PreferenceIsKeptOrItsLossIsNoted) {
    auto asked = between_gpus(0, 1);
    asked.prefer = Prefer::kernel;
    auto plan = route::plan(chain(), offers(), asked);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->route.lanes[0].hops[0].engine, "kernel");
    EXPECT_TRUE(refuses(plan->route, "copy engine", "a kernel is preferred"));

    asked = request(Place::host(), MemoryKind::pinned, Place::gpu(1), MemoryKind::device);
    asked.prefer = Prefer::kernel;
    plan = route::plan(chain(), offers(), asked);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->route.lanes[0].hops[0].engine, "copy engine");
    EXPECT_TRUE(refuses(plan->route, "by kernel", "none can carry these bytes")) << plan->route.to_string();
}

TEST(Planner, WithoutStagingMemoryNothingIsStaged) {
    auto asked = request(Place::host(), MemoryKind::pageable, Place::gpu(1), MemoryKind::device);
    for (const Bytes bytes : {Bytes{0}, Bytes{1}, route::min_stop - 1}) {
        asked.max_staging = bytes;
        const auto plan = route::plan(chain(), offers(), asked);
        ASSERT_FALSE(plan);
        EXPECT_NE(plan.error().message.find(format_bytes(bytes) + " of staging memory are allowed"),
                  std::string::npos)
            << plan.error().to_string();
    }
    asked.max_staging = route::min_stop;
    EXPECT_TRUE(route::plan(chain(), offers(), asked));
}

TEST(Planner, ASharedLinkIsDivided) {
    // Both GPUs hang off one switch: up and down of the shared link are different directions, so the pair
    // still gets all of it; a copy that would cross it twice the same way would get half.
    Topology::Parts parts;
    parts.name = "switch";
    parts.devices = {{DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0},
                     {DeviceKind::pcie_switch, 0, "switch:0", "", "", 0, 0},
                     {DeviceKind::gpu, 0, "gpu:0", "", "", 0, 1_GiB},
                     {DeviceKind::gpu, 1, "gpu:1", "", "", 0, 1_GiB}};
    parts.links = {{0, 1, LinkKind::pcie, 16, 60, 0.5},
                   {1, 2, LinkKind::pcie, 16, 60, 0.5},
                   {1, 3, LinkKind::pcie, 16, 60, 0.5}};
    const auto plan = route::plan(*Topology::create(std::move(parts)), offers(), between_gpus(0, 1));
    ASSERT_TRUE(plan) << plan.error().to_string();
    EXPECT_DOUBLE_EQ(plan->route.expected_gb_per_s, 54);
}

// Over random machines: the lane taken is never longer in time than any refused one that works, every
// refused candidate has a reason, and planning twice gives the same route.
// DGX-1: pairs without a link have a neighbour in common, and NVLink is wider than the way through the host.
TEST(Planner, HybridCubeMeshPairsWithoutALinkGoThroughANeighbour) {
    const auto dgx = Topology::model("dgx-1v");
    ASSERT_TRUE(dgx.ok());
    for (int a = 0; a < 8; ++a) {
        for (int b = 0; b < 8; ++b) {
            if (a == b) continue;
            const auto plan = route::plan(*dgx, offers(), between_gpus(a, b));
            ASSERT_TRUE(plan.ok()) << plan.error().to_string();
            const auto& hops = plan->route.lanes.front().hops;
            const bool linked =
                dgx->pair_class(*dgx->find(Place::gpu(a)), *dgx->find(Place::gpu(b))).links > 0;
            if (linked) continue;  // by their link, or by a wider way over a neighbour
            ASSERT_EQ(hops.size(), 2U) << a << " " << b;
            EXPECT_TRUE(hops.front().to.is_gpu()) << plan->route.to_string();
        }
    }
}

// Two GPUs below one switch of an Intel machine.
Topology switched(bool redirects) {
    Topology::Parts parts;
    parts.name = "switched";
    parts.pcie_peers = PathClass::pxb;
    parts.devices = {{DeviceKind::cpu, 0, "cpu:0", "Intel Xeon", "", 0, 0},
                     {DeviceKind::host_bridge, 0, "host_bridge:0", "", "", 0, 0},
                     {DeviceKind::pcie_switch, 0, "pcie_switch:0", "", "", 0, 0},
                     {DeviceKind::gpu, 0, "gpu:0", "", "", 0, 1_GiB},
                     {DeviceKind::gpu, 1, "gpu:1", "", "", 0, 1_GiB}};
    parts.devices[2].acs_redirect = redirects;
    parts.links = {{0, 1, LinkKind::pcie, 16, 200, 0.1},
                   {1, 2, LinkKind::pcie, 16, 60, 0.4},
                   {2, 3, LinkKind::pcie, 16, 60, 0.4},
                   {2, 4, LinkKind::pcie, 16, 60, 0.4}};
    return *Topology::create(std::move(parts));
}

TEST(Planner, PeersThatAccessControlRedirectsArePricedAsWhatTheyAre) {
    route::Request asked = between_gpus(0, 1);
    asked.require = Require::direct;
    const auto direct = route::plan(switched(false), offers(), asked);
    const auto redirected = route::plan(switched(true), offers(), asked);
    ASSERT_TRUE(direct.ok() && redirected.ok());
    const double reached = 60 * 55.5 / 63.015;
    EXPECT_NEAR(direct->route.expected_gb_per_s, reached, 1e-9);
    // Through the bridge of an Intel processor five sixths are left.
    EXPECT_NEAR(redirected->route.expected_gb_per_s, reached * 5 / 6, 1e-9);
    const Hop& hop = redirected->route.lanes.front().hops.front();
    EXPECT_GT(hop.latency_us, direct->route.lanes.front().hops.front().latency_us + 0.7);
    EXPECT_NE(hop.link.find("turned around at the host bridge by ACS"), std::string::npos) << hop.link;
}

TEST(Planner, OtherMachinesOfAClusterAreOutOfReach) {
    const auto cluster = Topology::model("dgx-h100*2");
    ASSERT_TRUE(cluster.ok());
    const auto plan = route::plan(*cluster, offers(), between_gpus(0, 9));
    ASSERT_FALSE(plan.ok());
    EXPECT_NE(plan.error().message.find("different machines"), std::string::npos) << plan.error().to_string();
    EXPECT_TRUE(route::plan(*cluster, offers(), between_gpus(8, 9)).ok());
    const auto staged =
        route::plan(*cluster, offers(),
                    request(Place::file("/x"), MemoryKind::storage, Place::gpu(12), MemoryKind::device));
    ASSERT_TRUE(staged.ok()) << staged.error().to_string();
    EXPECT_EQ(staged->route.lanes.front().hops.front().to.to_string(), "host:3")
        << "beside the GPU, not the first";
}

TEST(PlannerProperty, TheBestIsTakenAndEveryRefusalHasAReason) {
    std::mt19937 random(20261121);
    const auto uniform = [&](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
    };
    for (int round = 0; round < 300; ++round) {
        Topology::Parts parts;
        parts.name = "random";
        const int gpus = uniform(1, 6);
        parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
        for (int i = 0; i < gpus; ++i) {
            parts.devices.push_back({DeviceKind::gpu, i, "gpu:" + std::to_string(i), "", "", 0, 1_GiB});
            parts.links.push_back(
                {0, static_cast<DeviceId>(i + 1), LinkKind::pcie, 16, double(uniform(4, 64)), 0.5});
            for (int j = 0; j < i; ++j)
                if (uniform(0, 2) == 0)
                    parts.links.push_back({static_cast<DeviceId>(j + 1), static_cast<DeviceId>(i + 1),
                                           LinkKind::nvlink, 1, double(uniform(10, 400)), 0.3});
        }
        const Topology topology = *Topology::create(std::move(parts));
        const Place places[] = {Place::host(), Place::gpu(uniform(0, gpus - 1)),
                                Place::gpu(uniform(0, gpus - 1)), Place::file("/f")};
        const MemoryKind kinds[] = {uniform(0, 1) ? MemoryKind::pinned : MemoryKind::pageable,
                                    MemoryKind::device, MemoryKind::device, MemoryKind::storage};
        const int a = uniform(0, 3), b = uniform(0, 3);
        auto asked = request(places[a], kinds[a], places[b], kinds[b], Bytes{1} << uniform(0, 34));
        asked.require = uniform(0, 3) == 0 ? Require::direct : Require::any;
        const auto plan = route::plan(topology, offers(), asked);
        if (!plan) {
            EXPECT_EQ(plan.error().code, ErrorCode::path_unavailable);
            EXPECT_FALSE(plan.error().message.empty());
            continue;
        }
        const Route& route = plan->route;
        if (asked.require == Require::direct) {
            EXPECT_TRUE(route.direct());
        }
        double share = 0;
        for (const Lane& lane : route.lanes) {
            EXPECT_EQ(lane.hops.front().from, asked.from.place);
            EXPECT_EQ(lane.hops.back().to, asked.to.place);
            share += lane.share;
        }
        EXPECT_NEAR(share, 1, 1e-9) << route.to_string();
        for (const Refused& refused : route.refused) {
            EXPECT_FALSE(refused.reason.empty());
            EXPECT_FALSE(refused.path.empty());
            // At a size where latency is nothing, nothing refused for its speed is faster.
            if (asked.bytes < 1_GiB || asked.require == Require::direct) continue;
            EXPECT_LE(refused.gb_per_s, route.expected_gb_per_s * 1.000001) << route.to_string();
        }
        EXPECT_EQ(route::plan(topology, offers(), asked)->route, route);
    }
}

}  // namespace
}  // namespace sidestep
