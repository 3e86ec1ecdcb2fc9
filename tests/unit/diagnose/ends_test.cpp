// Two ends of a connection compared: a finding for each difference, with words for what to do.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "diagnose/ends/ends.hpp"

namespace sidestep::diagnose {
namespace {

// Two machines that could not be better.
NodeLook good_look() {
    NodeLook look;
    look.node = "n";
    look.engine = "verbs";
    look.here = {{"software", "sidestep 0.1.0"},
                 {"protocols", "2 to 3"},
                 {"kernel", "Linux 6.12.1"},
                 {"nvidia_driver", "580.1"},
                 {"gpus", "8"},
                 {"engine.tcp", "yes"},
                 {"engine.verbs", "yes"},
                 {"interface", "eth0"},
                 {"mtu", "9000"},
                 {"path_mtu", "9000"},
                 {"speed_mbit", "100000"},
                 {"round_trip_us", "30"},
                 {"rdma.mlx5_0.1", "ACTIVE, Ethernet, 100 Gb/sec"},
                 {"gids.mlx5_0.1", "IB/RoCE v1 x 2, RoCE v2 x 2"},
                 {"rdma_providers", "mlx5"},
                 {"memlock", "unlimited"},
                 {"rmem_max", "4194304"},
                 {"wmem_max", "4194304"},
                 {"tcp_rmem_max", "6291456"},
                 {"tcp_wmem_max", "4194304"}};
    look.there = look.here;
    look.addresses = {{"10.0.0.2:47900", ""}};
    look.clock = ClockDifference{std::chrono::microseconds(-3), std::chrono::microseconds(20)};
    return look;
}

Finding find(const NodeLook& look, const std::string& id) {
    for (Finding& finding : compare_ends(look))
        if (finding.id == id) return finding;
    ADD_FAILURE() << "no finding " << id;
    return {};
}

void expect_sound(const NodeLook& look) {
    for (const Finding& finding : compare_ends(look)) {
        EXPECT_FALSE(finding.summary.empty()) << finding.id;
        EXPECT_EQ(finding.group, CheckGroup::network);
        if (finding.verdict == Verdict::pass) continue;
        EXPECT_TRUE(finding.applies) << finding.id;
        EXPECT_FALSE(finding.seen.empty() && finding.verdict != Verdict::unknown) << finding.id;
        EXPECT_FALSE(finding.remedy.empty() && finding.verdict != Verdict::unknown) << finding.id;
    }
}

TEST(Ends, AllPassWhereBothAreGood) {
    const NodeLook look = good_look();
    expect_sound(look);
    std::set<std::string> ids;
    for (const Finding& finding : compare_ends(look)) {
        EXPECT_TRUE(ids.insert(finding.id).second) << finding.id;
        EXPECT_EQ(finding.verdict, Verdict::pass) << finding.id << ": " << finding.summary;
        EXPECT_TRUE(finding.applies) << finding.id;
    }
    EXPECT_EQ(ids.size(), 14u);
}

// What the node says differently -> the finding that it makes, its verdict, and what it says.
TEST(Ends, EachDifferenceHasItsFinding) {
    struct Case {
        const char* fact;
        const char* value;
        const char* id;
        Verdict verdict;
        const char* words;
    };
    for (const auto& [fact, value, id, verdict, words] : std::vector<Case>{
             {"software", "sidestep 0.0.9", "end-software", Verdict::warn, "n sidestep 0.0.9"},
             {"protocols", "2 to 2", "end-protocol", Verdict::warn, "n 2 to 2"},
             {"kernel", "Linux 5.15", "end-kernel", Verdict::pass, "Linux 5.15"},
             {"nvidia_driver", "570.1", "end-driver", Verdict::warn, "570.1 on n"},
             {"mtu", "1500", "end-mtu", Verdict::warn, "1500 on n"},
             {"path_mtu", "1500", "end-mtu", Verdict::warn, "at most 1500 bytes on the way"},
             {"speed_mbit", "25000", "end-link-rate", Verdict::warn, "25 Gb/s on n"},
             {"rdma.mlx5_0.1", "DOWN, Ethernet, 100 Gb/sec", "end-rdma-ports", Verdict::warn, "is up on n"},
             {"rdma.mlx5_1.1", "ACTIVE, Ethernet, 100 Gb/sec", "end-rdma-ports", Verdict::warn,
              "1 ports of RDMA cards are up here, and 2 on n"},
             {"gids.mlx5_0.1", "IB/RoCE v1 x 2", "end-roce", Verdict::warn, "RoCE v1 or InfiniBand on n"},
             {"memlock", "65536", "end-memlock", Verdict::warn, "limited on n"},
             {"tcp_rmem_max", "212992", "end-socket-buffers", Verdict::warn, "tcp_rmem_max on n"}}) {
        NodeLook look = good_look();
        look.there[fact] = value;
        expect_sound(look);
        const Finding finding = find(look, id);
        EXPECT_EQ(finding.verdict, verdict) << fact;
        EXPECT_NE(finding.summary.find(words), std::string::npos) << fact << ": " << finding.summary;
        for (const Finding& other : compare_ends(look))
            EXPECT_TRUE(other.id == id || other.verdict == Verdict::pass) << fact << " and " << other.id;
    }
}

TEST(Ends, WhatIsNotToldIsNotGuessed) {
    const std::vector<std::pair<const char*, const char*>> facts{
        {"software", "end-software"}, {"protocols", "end-protocol"},          {"kernel", "end-kernel"},
        {"mtu", "end-mtu"},           {"nvidia_driver", "end-driver"},        {"speed_mbit", "end-link-rate"},
        {"memlock", "end-memlock"},   {"tcp_rmem_max", "end-socket-buffers"}, {"gids.mlx5_0.1", "end-roce"}};
    for (const auto& [fact, id] : facts) {
        for (const bool here : {true, false}) {
            NodeLook look = good_look();
            (here ? look.here : look.there).erase(fact);
            expect_sound(look);
            const Finding finding = find(look, id);
            EXPECT_EQ(finding.verdict, Verdict::unknown) << fact << ": " << finding.summary;
            if (std::string(id) == "end-socket-buffers") continue;
            EXPECT_NE(finding.summary.find(here ? "this machine" : "n "), std::string::npos)
                << finding.summary;
        }
    }
    NodeLook silent;
    silent.node = "n";
    silent.engine = "tcp";
    expect_sound(silent);
    for (const Finding& finding : compare_ends(silent))
        EXPECT_NE(finding.verdict, Verdict::fail) << finding.id;
}

TEST(Ends, AnEngineThatIsNotTheBestSaysWhy) {
    NodeLook look = good_look();
    look.engine = "tcp";
    EXPECT_NE(find(look, "end-engine").summary.find("has failed"), std::string::npos);
    look.there["engine.verbs"] = "libibverbs.so.1 was not found";
    look.there["engine.verbs.remedy"] = "install rdma-core";
    const Finding finding = find(look, "end-engine");
    EXPECT_EQ(finding.verdict, Verdict::warn);
    EXPECT_EQ(finding.remedy, "on n: install rdma-core.");
    EXPECT_TRUE(std::any_of(finding.seen.begin(), finding.seen.end(),
                            [](const Seen& seen) { return seen.value == "libibverbs.so.1 was not found"; }));
    for (EndFacts* facts : {&look.here, &look.there}) facts->erase("rdma.mlx5_0.1");
    EXPECT_EQ(find(look, "end-engine").verdict, Verdict::pass);
    look.there.erase("engine.verbs");
    EXPECT_EQ(find(look, "end-engine").verdict, Verdict::unknown);
}

TEST(Ends, RdmaMattersOnlyWhereThereAreCards) {
    NodeLook look = good_look();
    look.there.erase("rdma.mlx5_0.1");
    EXPECT_EQ(find(look, "end-rdma-ports").verdict, Verdict::warn);
    EXPECT_FALSE(find(look, "end-roce").applies);
    look.here.erase("rdma.mlx5_0.1");
    look.here["memlock"] = "65536";
    look.here.erase("rdma_providers");
    for (const char* id : {"end-rdma-ports", "end-roce", "end-rdma-libraries", "end-memlock"})
        EXPECT_FALSE(find(look, id).applies) << id;
    NodeLook without = good_look();
    without.there.erase("rdma_providers");
    EXPECT_EQ(find(without, "end-rdma-libraries").verdict, Verdict::warn);
}

TEST(Ends, ADriverMattersOnlyToGpus) {
    NodeLook look = good_look();
    look.there["gpus"] = "0";
    look.there.erase("nvidia_driver");
    EXPECT_FALSE(find(look, "end-driver").applies);
}

TEST(Ends, AnAddressThatIsNotReachedIsNamed) {
    NodeLook look = good_look();
    look.addresses.push_back({"10.1.0.2:47900", "Connection refused"});
    const Finding finding = find(look, "end-addresses");
    EXPECT_EQ(finding.verdict, Verdict::warn);
    EXPECT_NE(finding.summary.find("1 of 2 addresses of n are not reached: 10.1.0.2:47900"),
              std::string::npos);
}

// The doubt is the time that the question took: what lies within it is no difference.
TEST(Ends, ClocksDifferOnlyBeyondTheDoubt) {
    using std::chrono::milliseconds;
    struct Case {
        milliseconds ahead, bound;
        Verdict verdict;
    };
    for (const auto& [ahead, bound, verdict] :
         std::vector<Case>{{milliseconds(0), milliseconds(1), Verdict::pass},
                           {milliseconds(101), milliseconds(1), Verdict::pass},
                           {milliseconds(102), milliseconds(1), Verdict::warn},
                           {milliseconds(-102), milliseconds(1), Verdict::warn},
                           {milliseconds(900), milliseconds(1000), Verdict::unknown},
                           {milliseconds(9000), milliseconds(1000), Verdict::warn}}) {
        NodeLook look = good_look();
        look.clock = ClockDifference{ahead, bound};
        EXPECT_EQ(find(look, "end-clock").verdict, verdict) << ahead.count();
        EXPECT_NE(find(look, "end-clock").summary.find(ahead.count() < 0 ? "behind" : "ahead"),
                  std::string::npos);
    }
    NodeLook look = good_look();
    look.clock.reset();
    EXPECT_EQ(find(look, "end-clock").verdict, Verdict::unknown);
}

TEST(Ends, LoopbackHasNoRate) {
    NodeLook look = good_look();
    for (EndFacts* facts : {&look.here, &look.there}) {
        (*facts)["interface"] = "lo";
        (*facts)["mtu"] = "65536";
        (*facts)["path_mtu"] = "65535";
        facts->erase("speed_mbit");
    }
    EXPECT_FALSE(find(look, "end-link-rate").applies);
    EXPECT_EQ(find(look, "end-mtu").verdict, Verdict::pass) << find(look, "end-mtu").summary;
}

TEST(Ends, SmallPacketsOnAFastLinkAreTold) {
    NodeLook look = good_look();
    for (EndFacts* facts : {&look.here, &look.there}) (*facts)["mtu"] = (*facts)["path_mtu"] = "1500";
    EXPECT_EQ(find(look, "end-mtu").verdict, Verdict::warn);
    for (EndFacts* facts : {&look.here, &look.there}) (*facts)["speed_mbit"] = "1000";
    EXPECT_EQ(find(look, "end-mtu").verdict, Verdict::pass);
}

}  // namespace
}  // namespace sidestep::diagnose
