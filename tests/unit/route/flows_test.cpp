// What flows leave each other of the links and engines they share.
#include "route/flows.hpp"

#include <gtest/gtest.h>

#include "offers.hpp"

namespace sidestep {
namespace {

// Two GPUs below a switch: 100 GB/s up to the host, 80 to the one, 20 to the other.
class FlowsTest : public testing::Test {
protected:
    static Topology machine() {
        Topology::Parts parts;
        parts.name = "fair";
        parts.devices = {{DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0},
                         {DeviceKind::pcie_switch, 0, "pcie_switch:0", "", "", 0, 0},
                         {DeviceKind::gpu, 0, "gpu:0", "", "", 0, 1_GiB},
                         {DeviceKind::gpu, 1, "gpu:1", "", "", 0, 1_GiB}};
        parts.links = {{0, 1, LinkKind::pcie, 16, 100, 0.5},
                       {1, 2, LinkKind::pcie, 16, 80, 0.5},
                       {1, 3, LinkKind::pcie, 4, 20, 0.5}};
        return *Topology::create(std::move(parts));
    }
    route::HopOption hop(bool down, int gpu) const {
        const route::End host{Place::host(), MemoryKind::pinned}, device{Place::gpu(gpu), MemoryKind::device};
        return route::hop_options(topology, test::offers(), down ? host : device, down ? device : host)
            .front();
    }

    const Topology topology = machine();
    const route::HopOption wide = hop(true, 0), narrow = hop(true, 1), back = hop(false, 0);
    route::Flows flows{topology};
};

TEST_F(FlowsTest, ASharedLinkIsDividedMaxMinFairly) {
    flows.cross(0, wide);
    flows.cross(1, narrow);
    EXPECT_NEAR(flows.fair_rates()[0], 72, 1e-6) << "80 of the link, 0.9 of it by the engine";
    EXPECT_NEAR(flows.fair_rates()[1], 18, 1e-6);
    flows.cross(2, wide);  // the wide link twice: 72 for both, and 90 up to the host
    const std::vector<double> three = flows.fair_rates();
    EXPECT_NEAR(three[0], 36, 1e-6);
    EXPECT_NEAR(three[2], 36, 1e-6);
    EXPECT_NEAR(three[1], 18, 1e-6);
}

TEST_F(FlowsTest, WhatOneDoesNotTakeIsLeftToTheOthers) {
    flows.cross(0, wide);
    flows.cross(1, wide);
    flows.take(1, "a slow disk", 10, 1);
    EXPECT_NEAR(flows.fair_rates()[1], 10, 1e-6);
    EXPECT_NEAR(flows.fair_rates()[0], 62, 1e-6);
}

TEST_F(FlowsTest, TheTwoDirectionsOfALinkAreApart) {
    flows.cross(0, wide);
    flows.cross(1, back);
    EXPECT_EQ(flows.fair_rates(), (std::vector<double>{72, 72}));
}

TEST_F(FlowsTest, AFlowThatCrossesALinkTwiceGetsHalfOfIt) {
    flows.cross(0, wide);
    flows.cross(0, wide);
    EXPECT_NEAR(flows.fair_rates()[0], 36, 1e-6);
    EXPECT_NEAR(flows.limit().seconds, 1 / 36.0, 1e-9);
    EXPECT_EQ(flows.limit().name, "the link between pcie_switch:0 and gpu:0");
}

TEST_F(FlowsTest, WhatTakesLongestIsNamed) {
    flows.cross(0, wide, 0.5);
    EXPECT_NEAR(flows.limit().seconds, 0.5 / 72, 1e-9);
    EXPECT_EQ(flows.limit().name, "the host -> gpu:0 copies");
    flows.take(0, "storage", 30, 1);
    EXPECT_NEAR(flows.limit().seconds, 1 / 30.0, 1e-9);
    EXPECT_EQ(flows.limit().name, "storage");
    flows.cross(0, narrow, 0.9);
    EXPECT_NEAR(flows.limit().seconds, 0.9 / 18, 1e-9);
    EXPECT_EQ(flows.limit().name, "the host -> gpu:1 copies");
}

// Equal ways are told from one another by what comes first, so their rates are to be equal to the last digit.
TEST_F(FlowsTest, AHopAloneHasItsOwnRateToTheLastDigit) {
    for (int rate = 1; rate <= 100; ++rate) {
        route::HopOption hop = wide;
        hop.hop.gb_per_s = rate / 3.0;
        route::Flows alone{topology};
        alone.cross(0, hop);
        EXPECT_EQ(alone.fair_rates()[0], hop.hop.gb_per_s);
    }
}

TEST_F(FlowsTest, WhatNobodyKnowsBoundsNothing) {
    route::HopOption unknown = wide;
    unknown.hop.gb_per_s = 0;
    flows.cross(0, unknown);
    flows.take(1, "storage", 0, 1);
    flows.cross(2, narrow);
    EXPECT_EQ(flows.fair_rates(), (std::vector<double>{0, 0, 18}));
}

}  // namespace
}  // namespace sidestep
