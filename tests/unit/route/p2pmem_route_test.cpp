// Routes to and from peer-to-peer memory.
#include <algorithm>

#include <gtest/gtest.h>

#include "offers.hpp"

namespace sidestep {
namespace {

using namespace test;

constexpr const char* bus_id = "0000:03:00.0";
constexpr MemorySet on_device{MemoryKind::p2pmem};
const Place file = Place::file("/data/x");
const Place memory = Place::p2pmem(bus_id);

std::vector<Offer> with_p2pmem(Support support = Support::yes("")) {
    using enum PlaceKind;
    auto all = offers();
    all.push_back(
        {"p2pmem",
         std::move(support),
         {capability(PlaceKind::file, p2pmem, in_file, on_device, Reach::storage_gpu, "drive DMA", 1, 3),
          capability(p2pmem, PlaceKind::file, on_device, in_file, Reach::storage_gpu, "drive DMA", 1, 3),
          capability(host, p2pmem, on_host, on_device, Reach::device_map, "memcpy", 1, 1),
          capability(p2pmem, host, on_device, on_host, Reach::device_map, "memcpy", 1, 0.1)},
         {},
         {}});
    return all;
}

// A processor and the drive with the memory, on four lanes of PCIe gen1.
Topology machine(const char* drive = bus_id) {
    Topology::Parts parts;
    parts.name = "one-drive";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    parts.devices.push_back({DeviceKind::drive, 0, "drive:nvme0", "", drive, 0, 0});
    Link link;
    link.a = 0;
    link.b = 1;
    link.kind = LinkKind::pcie;
    link.gb_per_s = 0.8;
    parts.links.push_back(link);
    return *Topology::create(parts);
}

route::Request to_memory() {
    return request(file, MemoryKind::storage, memory, MemoryKind::p2pmem);
}

TEST(P2pmemRoute, AFileGoesStraightIntoTheMemory) {
    const auto plan = route::plan(machine(), with_p2pmem(), to_memory());
    ASSERT_TRUE(plan.ok()) << plan.error().to_string();
    ASSERT_EQ(plan->route.lanes.size(), 1u);
    ASSERT_EQ(plan->route.lanes[0].hops.size(), 1u);
    EXPECT_EQ(plan->route.lanes[0].hops[0].engine, "drive DMA");
    EXPECT_FALSE(plan->route.refused.empty()) << "the way through host memory was considered";
}

// The refusal stands for the very file; the processor's own way stays open.
TEST(P2pmemRoute, ARefusalLeavesTheWayThroughHostMemory) {
    auto all = with_p2pmem();
    Offer refused{
        "p2pmem", Support::no("they share no PCIe switch", "move it"), {all.back().capabilities[0]}, {}, {}};
    all.back().capabilities[0].from = all.back().capabilities[0].to = PlaceKind::shared;
    all.push_back(refused);
    const auto plan = route::plan(machine(), all, to_memory());
    ASSERT_TRUE(plan.ok()) << plan.error().to_string();
    const auto& hops = plan->route.lanes[0].hops;
    ASSERT_EQ(hops.size(), 2u);
    EXPECT_TRUE(hops[0].to.is_host());
    EXPECT_EQ(hops[1].backend, "p2pmem");
    EXPECT_EQ(hops[1].engine, "memcpy");
    EXPECT_TRUE(std::any_of(plan->route.refused.begin(), plan->route.refused.end(), [](const Refused& other) {
        return other.reason == "they share no PCIe switch" && other.remedy == "move it";
    }));
    auto strict = to_memory();
    strict.require = Require::direct;
    const auto none = route::plan(machine(), all, strict);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code, ErrorCode::path_unavailable);
    EXPECT_NE(none.error().message.find("they share no PCIe switch"), std::string::npos)
        << none.error().message;
}

TEST(P2pmemRoute, TheProcessorsCopiesCrossTheLinkOfTheDevice) {
    const auto asked = request(Place::host(), MemoryKind::pageable, memory, MemoryKind::p2pmem);
    const auto plan = route::plan(machine(), with_p2pmem(), asked);
    ASSERT_TRUE(plan.ok()) << plan.error().to_string();
    const Hop& hop = plan->route.lanes[0].hops[0];
    EXPECT_EQ(hop.backend, "p2pmem");
    EXPECT_NE(hop.link, "");
    EXPECT_DOUBLE_EQ(hop.gb_per_s, 0.8);
    // The topology need not list the device.
    const auto unlisted = route::plan(machine("0000:09:00.0"), with_p2pmem(), asked);
    ASSERT_TRUE(unlisted.ok()) << unlisted.error().to_string();
    EXPECT_EQ(unlisted->route.lanes[0].hops[0].link, "");
    EXPECT_DOUBLE_EQ(unlisted->route.lanes[0].hops[0].gb_per_s, 1);
}

TEST(P2pmemRoute, AnUnusableBackendGivesItsReason) {
    const auto plan = route::plan(
        machine(), with_p2pmem(Support::no("no PCI device publishes any", "buy one")), to_memory());
    ASSERT_FALSE(plan.ok());
    EXPECT_NE(plan.error().message.find("no PCI device publishes any"), std::string::npos)
        << plan.error().message;
    EXPECT_EQ(plan.error().hint, "buy one");
}

}  // namespace
}  // namespace sidestep
