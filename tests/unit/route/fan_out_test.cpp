// Who gets a file's bytes from whom: what is chosen on which machine, and the words of what is not.
#include "route/fan_out.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "offers.hpp"

namespace sidestep {
namespace {

using test::offers;

route::FanOutRequest to_gpus(int count, Bytes bytes = 64_GiB) {
    route::FanOutRequest request;
    request.file = Place::file("/model");
    request.bytes = bytes;
    for (int gpu = 0; gpu < count; ++gpu) request.places.push_back({Place::gpu(gpu), MemoryKind::device});
    return request;
}

std::vector<backend::Offer> quick_offers(double file = 200, double memory = 94) {
    auto made = offers();
    for (auto& offer : made)
        for (auto& capability : offer.capabilities) {
            if (capability.reach == backend::Reach::storage) capability.max_gb_per_s = file;
            if (capability.reach == backend::Reach::host_memory) capability.max_gb_per_s = memory;
        }
    return made;
}

route::FanOut decide(const Topology& topology, const route::FanOutRequest& request,
                     const std::vector<backend::Offer>& with = quick_offers()) {
    auto found = route::fan_out(topology, with, request);
    EXPECT_TRUE(found) << found.error().to_string();
    return *found;
}

bool refuses(const Route& route, std::string_view path, std::string_view reason) {
    return std::any_of(route.refused.begin(), route.refused.end(), [&](const Refused& refused) {
        return refused.path.find(path) != std::string::npos &&
               refused.reason.find(reason) != std::string::npos;
    });
}

TEST(FanOut, NvlinkCarriesTheShares) {
    const auto found = decide(*Topology::model("dgx-h100"), to_gpus(4));
    ASSERT_EQ(found.groups.size(), 1u);
    EXPECT_EQ(found.groups[0].size(), 4u);
    ASSERT_EQ(found.route.lanes.size(), 4u);
    EXPECT_EQ(found.route.lanes[1].hops.size(), 3u);
    EXPECT_EQ(found.route.lanes[3].hops[2].to, Place::gpu(0));
    EXPECT_NEAR(found.route.lanes[0].share, 0.25, 1e-9);
    // The memory of the host: once filled, once read.
    EXPECT_NEAR(found.route.expected_gb_per_s, 94, 1);
    EXPECT_TRUE(refuses(found.route, "one slot to all places", "host memory is the limit"))
        << found.route.to_string();
    EXPECT_FALSE(found.route.to_json().empty());
}

TEST(FanOut, WithoutNvlinkOneSlotFeedsAll) {
    const auto found = decide(*Topology::model("pcie-4l40s"), to_gpus(4));
    EXPECT_EQ(found.groups.size(), 4u);
    EXPECT_EQ(found.route.lanes[0].hops.size(), 2u);
    EXPECT_NE(found.route.lanes[0].hops[1].reason.find("one slot feeds 4 places"), std::string::npos);
    EXPECT_TRUE(refuses(found.route, "gpu:0 -> gpu:1", "over PCIe")) << found.route.to_string();
    // Four copies share one link to the host.
    const auto one = decide(*Topology::model("pcie-4l40s"), to_gpus(1));
    EXPECT_NEAR(found.route.expected_gb_per_s, one.route.expected_gb_per_s / 4,
                one.route.expected_gb_per_s / 20);
}

TEST(FanOut, OnePlaceIsFedBySlots) {
    const auto found = decide(*Topology::model("dgx-h100"), to_gpus(1));
    ASSERT_EQ(found.route.lanes.size(), 1u);
    EXPECT_EQ(found.route.lanes[0].hops.size(), 2u);
    EXPECT_EQ(found.slots.memory, MemoryKind::pinned);
    EXPECT_EQ(found.slots.place, Place::host(0));
    EXPECT_NEAR(found.route.expected_gb_per_s, 63.015 * 0.9, 0.1);
    EXPECT_TRUE(refuses(found.route, "cufile", "not part of this build"));
    EXPECT_NEAR(found.route.expected_seconds,
                static_cast<double>(64_GiB) / 1e9 / found.route.expected_gb_per_s, 1e-3);
}

TEST(FanOut, SlowStorageIsTheLimitWhicheverWay) {
    const auto found = decide(*Topology::model("dgx-h100"), to_gpus(8), quick_offers(3));
    EXPECT_NEAR(found.route.expected_gb_per_s, 3, 1e-9);
    EXPECT_EQ(found.groups.size(), 1u);
    EXPECT_TRUE(
        refuses(found.route, "one slot to all places", "no faster than the way taken: reading the files"))
        << found.route.to_string();
}

TEST(FanOut, ShardsAreHandedOnByNobody) {
    auto request = to_gpus(4);
    request.shared = 0;
    request.own = {0.25, 0.25, 0.25, 0.25};
    const auto found = decide(*Topology::model("dgx-h100"), request);
    EXPECT_EQ(found.groups.size(), 4u);
    EXPECT_EQ(found.route.lanes[0].hops.size(), 2u);
    EXPECT_GT(found.route.expected_gb_per_s, 90);
}

TEST(FanOut, PairsWithNvlinkHandOnWithinThePair) {
    Topology::Parts parts;
    parts.name = "pairs";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    for (int gpu = 0; gpu < 4; ++gpu) {
        parts.devices.push_back({DeviceKind::gpu, gpu, "gpu:" + std::to_string(gpu), "", "", 0, 1_GiB});
        parts.links.push_back({0, static_cast<DeviceId>(gpu + 1), LinkKind::pcie, 16, 30, 0.5});
    }
    parts.links.push_back({1, 2, LinkKind::nvlink, 4, 100, 0.3});
    parts.links.push_back({3, 4, LinkKind::nvlink, 4, 100, 0.3});
    const auto found = decide(*Topology::create(std::move(parts)), to_gpus(4));
    EXPECT_EQ(found.groups, (std::vector<std::vector<std::size_t>>{{0, 1}, {2, 3}}));
    EXPECT_EQ(found.route.lanes[2].hops.back().to, Place::gpu(3));
    EXPECT_NEAR(found.route.expected_gb_per_s, 2 * 30 * 0.9, 0.1);
}

TEST(FanOut, ThinNvlinkIsPricedToo) {
    // Links between GPUs that carry less than the host's: handing on would be the narrowest place.
    Topology::Parts parts;
    parts.name = "thin";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    for (int gpu = 0; gpu < 2; ++gpu) {
        parts.devices.push_back({DeviceKind::gpu, gpu, "gpu:" + std::to_string(gpu), "", "", 0, 1_GiB});
        parts.links.push_back({0, static_cast<DeviceId>(gpu + 1), LinkKind::pcie, 16, 60, 0.5});
    }
    parts.links.push_back({1, 2, LinkKind::nvlink, 1, 20, 0.3});
    const auto found = decide(*Topology::create(std::move(parts)), to_gpus(2));
    EXPECT_EQ(found.groups.size(), 2u);
    EXPECT_TRUE(refuses(found.route, "shares over NVLink", "times as long")) << found.route.to_string();
}

std::vector<backend::Offer> with_direct_storage(double rate) {
    auto made = quick_offers();
    made.back().support = backend::Support::yes("");
    made.back().capabilities[0].max_gb_per_s = rate;
    return made;
}

TEST(FanOut, DirectStorageIsReadOnceAndHandedOn) {
    const auto found = decide(*Topology::model("dgx-h100"), to_gpus(4), with_direct_storage(150));
    EXPECT_FALSE(found.uses_slots());
    EXPECT_EQ(found.groups.size(), 1u);
    EXPECT_EQ(found.route.lanes[0].hops[0].backend, "cufile");
    EXPECT_EQ(found.route.lanes[0].hops.size(), 2u);
    EXPECT_TRUE(refuses(found.route, "one slot", "times as long")) << found.route.to_string();

    auto looked_at = to_gpus(4);
    looked_at.through_host = true;
    const auto staged = decide(*Topology::model("dgx-h100"), looked_at, with_direct_storage(150));
    EXPECT_FALSE(staged.any_direct());
    EXPECT_TRUE(refuses(staged.route, "cufile", "looked at in host memory")) << staged.route.to_string();
}

// Without NVLink every GPU reads all of it, and they share what the storage gives.
TEST(FanOut, DirectStorageIsReadOnceForEachGpuWithoutNvlink) {
    auto request = to_gpus(4);
    request.require = Require::direct;
    const auto found = decide(*Topology::model("pcie-4l40s"), request, with_direct_storage(20));
    EXPECT_FALSE(found.uses_slots());
    EXPECT_NEAR(found.route.expected_gb_per_s, 5, 1e-9);
}

// The others get theirs directly all the same.
TEST(FanOut, APlaceThatStorageDoesNotReachHasSlots) {
    auto made = with_direct_storage(150);
    made.back().objections.push_back({"cufile", Place::gpu(1), "another root port", "move it"});
    auto own = to_gpus(4);
    own.shared = 0;
    own.own = {0.25, 0.25, 0.25, 0.25};
    const auto found = decide(*Topology::model("pcie-4l40s"), own, made);
    EXPECT_EQ(found.direct, (std::vector<bool>{true, false, true, true})) << found.route.to_string();
    EXPECT_EQ(found.route.lanes[1].hops.size(), 2u);
    EXPECT_TRUE(refuses(found.route, "file -> gpu:1 by cufile", "another root port"))
        << found.route.to_string();
    EXPECT_TRUE(refuses(found.route, "one slot to all places", "times as long")) << found.route.to_string();
    own.require = Require::direct;
    const auto none = route::fan_out(*Topology::model("pcie-4l40s"), made, own);
    ASSERT_FALSE(none);
    EXPECT_NE(none.error().message.find(
                  "direct storage to 3 of 4 places, one slot to the other: a direct path is required"),
              std::string::npos)
        << none.error().message;

    const auto all = decide(*Topology::model("dgx-h100"), to_gpus(4), made);
    EXPECT_EQ(all.groups.size(), 1u);
    EXPECT_EQ(all.direct, (std::vector<bool>{true, false, true, true}));
    EXPECT_EQ(all.route.lanes[1].hops[0].to, Place::gpu(0)) << all.route.to_string();
    EXPECT_EQ(all.route.lanes[1].hops[1].to, Place::gpu(1));
}

TEST(FanOut, RequiringADirectPathTellsWhatIsMissing) {
    auto request = to_gpus(2);
    request.require = Require::direct;
    const auto none = route::fan_out(*Topology::model("dgx-h100"), quick_offers(), request);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code, ErrorCode::path_unavailable);
    EXPECT_NE(none.error().message.find("not part of this build"), std::string::npos) << none.error().message;
    EXPECT_TRUE(route::fan_out(*Topology::model("dgx-h100"), with_direct_storage(10), request));
    request.require = Require::host;
    EXPECT_FALSE(decide(*Topology::model("dgx-h100"), request, with_direct_storage(500)).any_direct());
}

TEST(FanOut, NothingReachesGpusWithoutADriver) {
    const auto none = route::fan_out(*Topology::model("dgx-h100"), offers(false), to_gpus(2));
    ASSERT_FALSE(none);
    EXPECT_NE(none.error().message.find("no NVIDIA driver"), std::string::npos) << none.error().message;
    EXPECT_EQ(none.error().hint, "install one");
}

TEST(FanOut, HostMemoryIsAPlaceToo) {
    auto request = to_gpus(2);
    request.places.push_back({Place::host(), MemoryKind::pageable});
    const auto found = decide(*Topology::model("dgx-h100"), request);
    EXPECT_EQ(found.groups, (std::vector<std::vector<std::size_t>>{{0, 1}, {2}}));
    EXPECT_EQ(found.route.lanes[2].hops[1].backend, "host");
    route::FanOutRequest host;
    host.file = Place::file("/model");
    host.bytes = 1_GiB;
    host.places = {{Place::host(), MemoryKind::pageable}};
    EXPECT_EQ(decide(*Topology::model("dgx-h100"), host).route.lanes[0].hops.size(), 2u);
}

TEST(FanOut, WritingGathersFromEveryPlace) {
    auto request = to_gpus(2);
    request.to_file = true;
    request.own = {0.5, 0.5};
    const auto found = decide(*Topology::model("dgx-h100"), request, quick_offers(4));
    ASSERT_EQ(found.route.lanes.size(), 2u);
    EXPECT_EQ(found.route.from, Place::gpu(0));
    EXPECT_EQ(found.route.to, Place::file("/model"));
    EXPECT_EQ(found.route.lanes[1].hops.front().from, Place::gpu(1));
    EXPECT_TRUE(found.route.lanes[1].hops.back().to.is_file());
    EXPECT_NEAR(found.route.expected_gb_per_s, 4, 1e-9);
    EXPECT_EQ(found.groups.size(), 2u);
}

TEST(FanOut, WritingTellsWhyItDoesNotGoDirectly) {
    auto request = to_gpus(2);
    request.to_file = true;
    request.own = {0.5, 0.5};
    auto made = with_direct_storage(150);
    auto outward = made.back().capabilities[0];
    std::swap(outward.from, outward.to);
    std::swap(outward.from_memory, outward.to_memory);
    made.back().capabilities.push_back(outward);
    const auto found = decide(*Topology::model("dgx-h100"), request, made);
    EXPECT_FALSE(found.any_direct());
    EXPECT_TRUE(refuses(found.route, "gpu:1 -> file by cufile", "put together in host memory"))
        << found.route.to_string();
    made.back().support = backend::Support::no("no udev", "mount it");
    const auto without = decide(*Topology::model("dgx-h100"), request, made);
    EXPECT_TRUE(refuses(without.route, "gpu:0 -> file by cufile", "no udev")) << without.route.to_string();
}

TEST(FanOut, TheKernelIsTakenWherePreferred) {
    auto request = to_gpus(2);
    request.prefer = Prefer::kernel;
    const auto found = decide(*Topology::model("dgx-h100"), request);
    EXPECT_EQ(found.route.lanes[0].hops.back().engine, "kernel");
    EXPECT_EQ(decide(*Topology::model("dgx-h100"), to_gpus(2)).route.lanes[0].hops.back().engine,
              "copy engine");
}

TEST(FanOut, NoPlaceIsAnError) {
    EXPECT_EQ(route::fan_out(*Topology::model("dgx-h100"), quick_offers(), {}).error().code,
              ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace sidestep
