// What holds for every built-in machine, and the rates of links.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include <sidestep/topology.hpp>

#include "tests/unit/topology/model_rows.hpp"
#include "topology/link_rates.hpp"

namespace sidestep {
namespace {

TEST(TopologyModel, AreTheseMachines) {
    const std::vector<std::string> names = {"dgx-1v",   "dgx-2",      "dgx-a100",    "dgx-h100",
                                            "dgx-h200", "dgx-b200",   "gb200-nvl72", "gb200-tray",
                                            "mi300x",   "pcie-4l40s", "pcie-2s",     "laptop"};
    EXPECT_EQ(Topology::model_names(), names);
}

TEST(TopologyModel, UnknownNamesListTheKnownOnes) {
    for (const char* name : {"dgx-z9", "", "dgx-z9*4", "*4", "DGX-H100"}) {
        const auto unknown = Topology::model(name);
        ASSERT_FALSE(unknown.ok()) << name;
        EXPECT_EQ(unknown.error().code, ErrorCode::not_found) << name;
        for (const std::string& known : Topology::model_names()) {
            EXPECT_NE(unknown.error().hint.find(known), std::string::npos) << known;
        }
    }
    EXPECT_NE(Topology::model("dgx-z9*4").error().message.find("\"dgx-z9\""), std::string::npos);
}

class EveryModel : public testing::TestWithParam<std::string> {
protected:
    EveryModel() : machine(Topology::model(GetParam()).value()) {}
    Topology machine;
};

TEST_P(EveryModel, Holds) {
    EXPECT_EQ(machine.name(), GetParam());
    EXPECT_TRUE(machine.emulated());
    EXPECT_GT(machine.gpu_count(), 0);
    EXPECT_FALSE(machine.parts().properties.at("description").empty());
    EXPECT_EQ(count(machine, DeviceKind::net_switch), 0) << "one machine has no network";
    ASSERT_TRUE(machine.find(Place::host()));
    for (int gpu = 0; gpu < machine.gpu_count(); ++gpu) {
        const auto id = machine.find(Place::gpu(gpu));
        ASSERT_TRUE(id) << "gpu:" << gpu;
        EXPECT_GT(machine.device(*id).memory, 0U);
        const auto cpu = machine.cpu_of(*id);
        ASSERT_TRUE(cpu) << "gpu:" << gpu;
        EXPECT_EQ(machine.device(*cpu).numa_node, machine.device(*id).numa_node);
        EXPECT_TRUE(machine.path(*id, *cpu)) << "gpu:" << gpu;
    }
}

TEST_P(EveryModel, EndpointsHangInTheTreeAndKnowTheirNode) {
    std::set<std::pair<int, std::string>> buses;
    for (DeviceId id = 0; id < machine.devices().size(); ++id) {
        const Device& device = machine.device(id);
        if (!device.bus_id.empty()) {
            EXPECT_TRUE(buses.emplace(device.node, device.bus_id).second) << device.name << " shares its bus";
        }
        if (device.kind == DeviceKind::cpu || device.kind == DeviceKind::nvswitch) continue;
        const auto cpu = machine.cpu_of(id);
        ASSERT_TRUE(cpu && machine.parent(id)) << device.name;
        EXPECT_EQ(machine.device(*cpu).numa_node, device.numa_node) << device.name;
        EXPECT_EQ(machine.device(*cpu).node, device.node) << device.name;
    }
}

TEST_P(EveryModel, IsReadBackTheSame) {
    const auto again = Topology::from_json(machine.to_json(), "test");
    ASSERT_TRUE(again.ok()) << again.error().to_string();
    EXPECT_EQ(again->parts(), machine.parts());
}

// A host bridge passes on what hangs below it; a PCIe switch has no more lanes up than down.
TEST_P(EveryModel, NothingIsWiderAboveThanBelow) {
    for (DeviceId id = 0; id < machine.devices().size(); ++id) {
        if (machine.device(id).kind != DeviceKind::host_bridge) continue;
        double below = 0;
        double above = 0;
        for (const Link& link : machine.links()) {
            if (link.a != id && link.b != id) continue;
            const DeviceId far = link.a == id ? link.b : link.a;
            (machine.device(far).kind == DeviceKind::cpu ? above : below) += link.gb_per_s;
        }
        EXPECT_DOUBLE_EQ(above, below) << machine.device(id).name;
    }
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
    std::string name = info.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(TopologyModel, EveryModel, testing::ValuesIn(Topology::model_names()), test_name);

// GB/s of one direction. 3 % off at most, except where what was measured here is above what others published.
TEST(LinkRates, PredictedFiguresAreThosePublished) {
    struct Case {
        const char* machine;
        const char* from;
        const char* to;
        double low;
        double high;
        double off;
    };
    const Case cases[] = {
        {"dgx-1v", "gpu:0", "gpu:3", 47.9, 47.9, 0.03},     {"dgx-a100", "gpu:0", "gpu:7", 265, 276, 0.03},
        {"dgx-h100", "gpu:0", "gpu:7", 371, 377, 0.07},     {"dgx-h200", "gpu:0", "gpu:7", 394, 396, 0.03},
        {"gb200-tray", "gpu:0", "gpu:3", 770, 770, 0.03},   {"mi300x", "gpu:0", "gpu:1", 48, 48, 0.03},
        {"pcie-2s", "gpu:0", "gpu:1", 26.3, 26.3, 0.03},    {"pcie-2s", "gpu:0", "gpu:2", 21.8, 21.8, 0.03},
        {"pcie-4l40s", "gpu:0", "gpu:1", 26.3, 26.3, 0.03}, {"dgx-a100", "cpu:3", "gpu:0", 26.3, 26.3, 0.03},
        {"dgx-h100", "cpu:0", "gpu:0", 51, 52, 0.09},       {"dgx-h200", "cpu:0", "gpu:0", 55.3, 55.5, 0.03},
        {"dgx-1v", "cpu:0", "gpu:0", 12.15, 12.15, 0.03},
    };
    for (const Case& c : cases) {
        const auto machine = Topology::model(c.machine);
        ASSERT_TRUE(machine.ok());
        const double rate =
            machine->pair(machine->find(c.from).value(), machine->find(c.to).value()).gb_per_s;
        EXPECT_GT(rate, c.low * (1 - c.off)) << c.machine << " " << c.from << " " << c.to;
        EXPECT_LT(rate, c.high * (1 + c.off)) << c.machine << " " << c.from << " " << c.to;
    }
    const auto reached = [](int links, double each) {
        return links * each * topology::reached_part({0, 1, LinkKind::nvlink, links, links * each});
    };
    EXPECT_NEAR(reached(1, 20), 18.3, 0.03 * 18.3) << "P100";
    EXPECT_NEAR(reached(12, 26.5625), 256.6, 0.03 * 256.6) << "H100 PCIe with a bridge";
    EXPECT_NEAR(reached(8, 26.5625), 160, 0.11 * 160) << "H800";
    EXPECT_EQ(topology::reached_part({0, 1, LinkKind::nvlink, 1, 33}),
              topology::reached_part(LinkKind::nvlink));
}

TEST(LinkRates, PcieByGenerationAndLanes) {
    EXPECT_DOUBLE_EQ(topology::pcie_gb_per_s(1, 16), 4);
    EXPECT_DOUBLE_EQ(topology::pcie_gb_per_s(2, 1), 0.5);
    EXPECT_NEAR(topology::pcie_gb_per_s(3, 16), 15.754, 0.001);
    EXPECT_NEAR(topology::pcie_gb_per_s(4, 16), 31.508, 0.001);
    EXPECT_NEAR(topology::pcie_gb_per_s(5, 16), 63.015, 0.001);
    EXPECT_DOUBLE_EQ(topology::pcie_gb_per_s(6, 16), 121);
    EXPECT_EQ(topology::pcie_gb_per_s(0, 16), 0);
    EXPECT_EQ(topology::pcie_gb_per_s(7, 16), 0);
    EXPECT_EQ(topology::pcie_generation(2.5), 1);
    EXPECT_EQ(topology::pcie_generation(32.0), 5);
    EXPECT_FALSE(topology::pcie_generation(0));
    EXPECT_FALSE(topology::pcie_generation(7));
    EXPECT_EQ(topology::pcie_generation_of(63, 16), 5);
    EXPECT_FALSE(topology::pcie_generation_of(50, 16));
}

}  // namespace
}  // namespace sidestep
