// What explain says of a choice, and bytes and rates as nccl-tests counts them.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/collective/choosing.hpp"

namespace sidestep::collective {
namespace {

using protocol::Element;

TEST(Sizes, AsNcclTestsCountsThem) {
    Operation operation = operation_of(Collective::all_reduce, 100);
    operation.element = Element::f32;
    EXPECT_EQ(counted_bytes(operation, 4), 400u);
    for (const Collective collective : {Collective::all_gather, Collective::reduce_scatter,
                                        Collective::all_to_all, Collective::gather, Collective::scatter}) {
        operation.collective = collective;
        EXPECT_EQ(counted_bytes(operation, 4), 1600u);
        EXPECT_DOUBLE_EQ(bus_factor(collective, 4), 0.75);
    }
    EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
    for (const Collective collective : {Collective::broadcast, Collective::reduce, Collective::send_recv})
        EXPECT_DOUBLE_EQ(bus_factor(collective, 4), 1);
    operation.collective = Collective::barrier;
    EXPECT_EQ(counted_bytes(operation, 4), 0u);
    operation = operation_of(Collective::all_reduce, 3'000'000);
    EXPECT_DOUBLE_EQ(bus_rate(operation, 4, 15), 300);
    EXPECT_DOUBLE_EQ(bus_rate(operation, 4, 0), 0);
}

TEST(Plan, PrintsTheChoiceAndEveryOtherOne) {
    const Operation operation = operation_of(Collective::all_reduce, 128 << 10);
    const CollectivePlan plan = plan_of(operation, choice_of(operation, group_of(4)), 4, "yes");
    const std::string text = plan.to_string();
    EXPECT_EQ(text.find("all_reduce  128 KiB   lines, 14 thread blocks, expected 5.68 us, 34.6 GB/s of bus "
                        "bandwidth\n  why     the quickest at this size: 2 hops"),
              0u)
        << text;
    EXPECT_NE(text.find("\n  mapped  yes\nrefused\n  one-shot packets  "), std::string::npos) << text;
    EXPECT_NE(text.find("\n  slices             5.05 us slower: "), std::string::npos) << text;
    for (const Refused& one : plan.refused) EXPECT_NE(text.find(one.path + " "), std::string::npos);
}

TEST(Plan, IsJsonToo) {
    const Operation operation = operation_of(Collective::broadcast, 4 << 20);
    const CollectivePlan plan = plan_of(operation, choice_of(operation, group_of(8)), 8, "no: \xff");
    const auto json = nlohmann::json::parse(plan.to_json());
    EXPECT_EQ(json.at("version"), 1);
    EXPECT_EQ(json.at("collective"), "broadcast");
    EXPECT_EQ(json.at("bytes"), 4 << 20);
    EXPECT_EQ(json.at("algorithm"), "slices");
    EXPECT_EQ(json.at("blocks"), plan.blocks);
    EXPECT_EQ(json.at("expected_us"), plan.expected_us);
    EXPECT_EQ(json.at("expected_bus_gb_per_s"), plan.expected_bus_gb_per_s);
    EXPECT_EQ(json.at("reason"), plan.reason);
    EXPECT_EQ(json.at("refused").size(), plan.refused.size());
    EXPECT_EQ(json.at("refused")[0].at("algorithm"), "one-shot packets");
}

}  // namespace
}  // namespace sidestep::collective
