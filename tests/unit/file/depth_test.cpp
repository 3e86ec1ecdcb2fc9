// How deep the file backend queues, against devices that exist on paper only.
#include "backends/file/depth_controller.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace sidestep::backends::file {
namespace {

using namespace std::chrono_literals;
using Time = DepthController::Time;
using Duration = std::chrono::nanoseconds;

// A device that works on `parallel` requests at once, each for `service`; the rest wait in line.
struct Device {
    unsigned parallel = 8;
    Duration service = 1ms;
    // Added to each request for every one outstanding beyond `parallel`: what crowding costs.
    Duration crowding = 0ns;
};

// Runs requests of 2 MiB through a device with a clock that a test moves.
class Simulation {
public:
    Simulation(DepthController& controller, Device device) : controller_(controller), device_(device) {}

    // Ends that many requests. `wish`: how many the caller ever has to offer at once.
    void run(unsigned requests, unsigned wish = 1000) {
        for (unsigned i = 0; i < requests; ++i) {
            fill(wish);
            const auto next = std::min_element(flying_.begin(), flying_.end());
            now_ = std::max(now_, *next);
            flying_.erase(next);
            const bool wanted = wish > flying_.size() + 1 || flying_.size() + 1 >= controller_.depth();
            controller_.ended(now_, 2_MiB, wanted);
            deepest_ = std::max(deepest_, controller_.depth());
        }
    }
    unsigned deepest() const { return deepest_; }
    Device& device() { return device_; }
    void idle() { flying_.clear(); }

private:
    void fill(unsigned wish) {
        while (flying_.size() < std::min(controller_.depth(), wish)) {
            if (flying_.empty()) controller_.woken(now_);
            // Its server is free once all but parallel - 1 of those before it have ended.
            std::vector<Time> ends = flying_;
            std::sort(ends.begin(), ends.end());
            const Time free = ends.size() < device_.parallel ? now_ : ends[ends.size() - device_.parallel];
            const auto beyond =
                ends.size() > device_.parallel ? static_cast<long>(ends.size() - device_.parallel) : 0;
            flying_.push_back(std::max(now_, free) + device_.service + beyond * device_.crowding);
        }
    }

    DepthController& controller_;
    Device device_;
    Time now_{};
    std::vector<Time> flying_;
    unsigned deepest_ = 0;
};

constexpr DepthController::Bounds bounds{4, 16, 128};

TEST(Depth, StartsModest) {
    EXPECT_EQ(DepthController(bounds).depth(), 16u);
}

TEST(Depth, GrowsAsFarAsThroughputDoes) {
    DepthController controller(bounds);
    Simulation simulation(controller, {.parallel = 60});
    simulation.run(2000);
    EXPECT_EQ(controller.settled(), 64u);
}

TEST(Depth, IsBounded) {
    DepthController controller(bounds);
    Simulation simulation(controller, {.parallel = 1000});
    simulation.run(20000);
    EXPECT_EQ(controller.settled(), 128u);
    EXPECT_EQ(simulation.deepest(), 128u);
}

TEST(Depth, FallsWhereRequestsOnlyWaitInLine) {
    DepthController controller(bounds);
    Simulation simulation(controller, {.parallel = 1, .service = 500us});
    simulation.run(1000);
    EXPECT_EQ(controller.settled(), 4u);
}

TEST(Depth, FallsToWhatTheDeviceCanDoAtOnce) {
    DepthController controller({1, 64, 128});
    Simulation simulation(controller, {.parallel = 8});
    simulation.run(2000);
    EXPECT_EQ(controller.settled(), 8u);
}

TEST(Depth, LeavesACrowdedDevice) {
    DepthController controller({4, 64, 128});
    Simulation simulation(controller, {.parallel = 16, .service = 1ms, .crowding = 200us});
    simulation.run(2000);
    EXPECT_EQ(controller.settled(), 16u);
}

TEST(Depth, FollowsADeviceThatChanges) {
    DepthController controller(bounds);
    Simulation simulation(controller, {.parallel = 4});
    simulation.run(2000);
    EXPECT_EQ(controller.settled(), 4u);
    simulation.device().parallel = 32;
    simulation.run(20000);
    EXPECT_EQ(controller.settled(), 32u);
}

TEST(Depth, LearnsNothingFromThoseWhoAskForLittle) {
    DepthController controller(bounds);
    Simulation simulation(controller, {.parallel = 64});
    simulation.run(5000, 3);
    EXPECT_EQ(controller.depth(), 16u);
    EXPECT_EQ(simulation.deepest(), 16u);
}

TEST(Depth, ForgetsATrialThatAPauseCutShort) {
    DepthController controller(bounds);
    Simulation simulation(controller, {.parallel = 16});
    simulation.run(40);  // measured at 16, now trying 32
    ASSERT_EQ(controller.depth(), 32u);
    simulation.idle();
    simulation.run(1);
    EXPECT_EQ(controller.depth(), 16u);
}

// 2 MiB in 500 us are 4 GB/s for each request: copies, of which more only take processors from each other.
TEST(Depth, DoesNotGrowWhereRequestsAreBusy) {
    DepthController controller({8, 8, 64, 5e8});
    Simulation simulation(controller, {.parallel = 60, .service = 500us});
    simulation.run(5000);
    EXPECT_EQ(simulation.deepest(), 8u);
}

// 2 MiB in 20 ms are 0.1 GB/s: they wait for something.
TEST(Depth, GrowsWhereRequestsWait) {
    DepthController controller({8, 8, 64, 5e8});
    Simulation simulation(controller, {.parallel = 60, .service = 20ms});
    simulation.run(5000);
    EXPECT_EQ(controller.settled(), 64u);
}

// A look around costs what it tries, so it becomes rarer while nothing better is found.
TEST(Depth, LooksLessOftenWhereNothingIsFound) {
    DepthController controller(bounds);
    Simulation simulation(controller, {.parallel = 16});
    const auto looks = [&] {
        unsigned elsewhere = 0;
        for (int i = 0; i < 4000; ++i) {
            simulation.run(1);
            elsewhere += controller.depth() != controller.settled();
        }
        return elsewhere;
    };
    const unsigned first = looks();
    EXPECT_EQ(controller.settled(), 16u);
    simulation.run(20000);
    EXPECT_LT(looks(), first / 2);
}

TEST(Depth, AClockThatStandsStillDoesNoHarm) {
    DepthController controller(bounds);
    const Time now{};
    controller.woken(now);
    for (int i = 0; i < 1000; ++i) controller.ended(now, 2_MiB, true);
    EXPECT_EQ(controller.depth(), 16u);
}

}  // namespace
}  // namespace sidestep::backends::file
