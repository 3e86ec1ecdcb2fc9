// The made-up machines are what they say they are: the checks' tests stand on them.
#include "tests/unit/diagnose/fake_machine.hpp"

#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {
namespace {

TEST(FakeMachine, EmptyShowsNothing) {
    Machine machine;
    const Evidence evidence = machine.evidence();
    EXPECT_EQ(evidence.topology.gpu_count(), 0);
    EXPECT_EQ(evidence.nvml, nullptr);
    EXPECT_FALSE(evidence.no_nvml.empty());
    EXPECT_EQ(topology::iommu_mode(evidence.files).value, "");
}

TEST(FakeMachine, ServerHasFourGpusBelowSwitchesOnTwoSockets) {
    H200Machine machine;
    const Evidence evidence = machine.evidence();
    ASSERT_EQ(evidence.topology.gpu_count(), 4);
    for (int gpu = 0; gpu < 4; ++gpu) {
        const Device& device = evidence.topology.device(*evidence.topology.find(Place::gpu(gpu)));
        EXPECT_EQ(device.bus_id, H200Machine::bus_id(gpu));
        EXPECT_EQ(device.numa_node, gpu / 2);
        EXPECT_EQ(topology::pci_walk(evidence.files, device.bus_id).size(), 4U);
    }
    EXPECT_TRUE(evidence.topology.find(DeviceKind::nvswitch, 0));
    EXPECT_TRUE(evidence.topology.find(DeviceKind::pcie_switch, 3));
    EXPECT_EQ(topology::iommu_mode(evidence.files).value, "pass-through");
    EXPECT_EQ(topology::iommu_group(evidence.files, H200Machine::bus_id(2)).value, "30");
    EXPECT_EQ(topology::bar_size(evidence.files, H200Machine::bus_id(0), 1), Bytes{256} << 30);
    EXPECT_EQ(topology::hypervisor(evidence.files).value, "none");
}

TEST(FakeMachine, AccessControlIsReadFromTheConfigurationSpace) {
    H200Machine machine;
    machine.acs(H200Machine::downstream(0), 0x5f, 0x1d);
    const auto bits = topology::acs_of(machine.evidence().files, "0000:1b:00.0");
    ASSERT_TRUE(bits);
    EXPECT_TRUE(bits->redirects);
}

TEST(FakeMachine, GuestIsFlat) {
    H200Guest machine;
    const Evidence evidence = machine.evidence();
    ASSERT_EQ(evidence.topology.gpu_count(), 4);
    EXPECT_EQ(topology::hypervisor(evidence.files).value, "kvm");
    EXPECT_FALSE(evidence.topology.find(DeviceKind::pcie_switch, 0));
    EXPECT_EQ(evidence.topology.device(*evidence.topology.find(Place::gpu(3))).numa_node, -1);
}

}  // namespace
}  // namespace sidestep::diagnose
