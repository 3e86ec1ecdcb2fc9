// What the collective benchmark measures, and what it makes of it.
#include "bench/collective/plan.hpp"

#include <gtest/gtest.h>

#include "bench/collective/rank.hpp"
#include "bench/collective/table.hpp"

namespace sidestep::bench::collective {
namespace {

Line line_of(const Call& call, std::string engine, std::vector<double> us, std::int64_t wrong = 0) {
    return {call, std::move(engine), {std::move(us)}, wrong, "path", {}};
}

TEST(CollectivePlan, SizesGrowByTheFactor) {
    EXPECT_EQ(sizes_between(8, 64, 2), (std::vector<Bytes>{8, 16, 32, 64}));
    EXPECT_EQ(sizes_between(100, 99, 2), std::vector<Bytes>{});
    EXPECT_EQ(sizes_between(4, 50, 3), (std::vector<Bytes>{4, 12, 36}));
    EXPECT_EQ(sizes_between(4, 50, 1), std::vector<Bytes>{4});
    EXPECT_EQ(sizes_between(0, 50, 2), std::vector<Bytes>{0});
}

TEST(CollectivePlan, CountsAreThoseOfNcclTests) {
    Plan plan;
    plan.modes = {Mode::stream};
    plan.sizes = {4096};
    // Bytes of a whole buffer, elements of one rank's block.
    const auto count = [&](Collective operation) {
        plan.operations = {operation};
        return calls_of(plan, 4).front().count;
    };
    EXPECT_EQ(count(Collective::all_reduce), 1024u);
    EXPECT_EQ(count(Collective::broadcast), 1024u);
    EXPECT_EQ(count(Collective::send_recv), 1024u);
    for (const auto operation : {Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all,
                                 Collective::gather, Collective::scatter})
        EXPECT_EQ(count(operation), 256u) << to_string(operation);
    EXPECT_EQ(count(Collective::all_to_all_v), 1024u / 11);  // three blocks and one of eight
}

TEST(CollectivePlan, CallsComeInOnePlaceThenInTheOther) {
    Plan plan;
    plan.operations = {Collective::all_reduce, Collective::all_to_all, Collective::barrier};
    plan.modes = {Mode::graph};
    plan.types = {Dtype::f32, Dtype::bf16};
    plan.reductions = {ReduceOp::sum, ReduceOp::max};
    plan.sizes = {2, 64};
    const auto calls = calls_of(plan, 4);
    std::size_t all_reduce = 0, all_to_all = 0, barrier = 0;
    for (const Call& call : calls) {
        all_reduce += call.operation == Collective::all_reduce;
        all_to_all += call.operation == Collective::all_to_all;
        barrier += call.operation == Collective::barrier;
        EXPECT_TRUE(call.count > 0 || call.operation == Collective::barrier);
    }
    // f32 has no element in 2 bytes, so three pairs of type and size; two reductions; two places.
    EXPECT_EQ(all_reduce, 3u * 2 * 2);
    EXPECT_EQ(all_to_all, 2u);  // 64 bytes of each type, no reductions, out of place alone
    EXPECT_EQ(barrier, 1u);
    EXPECT_FALSE(calls[0].in_place);
    EXPECT_TRUE(calls[1].in_place);
}

TEST(CollectivePlan, WhatIsLeftOutIsSaid) {
    Plan plan;
    plan.types = {Dtype::f32, Dtype::i8};
    plan.sizes = {8, 64};
    EXPECT_EQ(
        left_out(plan, Collective::all_gather, 4),
        std::vector<std::string>{
            "all_gather float: sizes below 16 B are left out, which hold no element for each of 4 ranks"});
    EXPECT_EQ(left_out(plan, Collective::all_to_all_v, 4).size(), 2u);  // 11 elements
    EXPECT_TRUE(left_out(plan, Collective::all_reduce, 4).empty());
    plan.sizes = {2};
    EXPECT_FALSE(left_out(plan, Collective::all_reduce, 4).empty());
    EXPECT_TRUE(left_out(plan, Collective::barrier, 4).empty());
}

TEST(CollectivePlan, BusFactorsAreThoseOfNcclTests) {
    EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
    for (const auto operation : {Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all,
                                 Collective::gather, Collective::scatter})
        EXPECT_DOUBLE_EQ(bus_factor(operation, 4), 0.75);
    for (const auto operation : {Collective::broadcast, Collective::reduce, Collective::send_recv})
        EXPECT_DOUBLE_EQ(bus_factor(operation, 4), 1);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::all_to_all_v, 4),
                     10.0 / 11);  // one of rank 0's blocks stays with it
}

TEST(CollectivePlan, WordsOfBothSpellings) {
    EXPECT_EQ(*parse_types("float,bf16"), (std::vector<Dtype>{Dtype::f32, Dtype::bf16}));
    EXPECT_EQ(parse_types("all")->size(), 12u);
    EXPECT_EQ(*parse_reductions("mulsum,max"), (std::vector<ReduceOp>{ReduceOp::scaled_sum, ReduceOp::max}));
    EXPECT_EQ(parse_operations("all")->size(), 11u);
    EXPECT_NE(parse_types("float,,half").error().message.find("''"), std::string::npos);
    EXPECT_NE(parse_operations("allreduce").error().message.find("'allreduce'"), std::string::npos);
    EXPECT_EQ(parse_reductions("").error().code, ErrorCode::invalid_argument);
}

TEST(CollectivePlan, JsonBringsBackEverything) {
    Plan plan;
    plan.operations = {Collective::gather, Collective::barrier};
    plan.types = {Dtype::f8_e5m2};
    plan.reductions = {ReduceOp::scaled_sum};
    plan.sizes = {1, Bytes{1} << 40};
    plan.modes = {Mode::graph};
    plan.root = 3;
    plan.iterations = 7;
    plan.launches = 6;
    plan.warmup = 0;
    plan.samples = 9;
    plan.verify = false;
    plan.zero_sm = true;
    plan.nccl = "/x/libnccl.so.2";
    const auto back = Plan::from_json(plan.to_json());
    ASSERT_TRUE(back.ok()) << back.error().to_string();
    EXPECT_EQ(back->to_json(), plan.to_json());
    EXPECT_EQ(back->sizes, plan.sizes);
    EXPECT_EQ(back->root, 3);
    EXPECT_EQ(back->launches, 6);
    EXPECT_FALSE(back->verify);
    for (const char* text : {"", "[]", "{}", "{\"operations\": 3}"})
        EXPECT_FALSE(Plan::from_json(text).ok()) << text;
}

TEST(CollectivePlan, LinesAsJson) {
    Call call{Collective::reduce, Dtype::i8, ReduceOp::max, 77, 77, Mode::graph, true};
    const Found found{{line_of(call, "sidestep", {1.5, 2}, 3)}, {"no NCCL"}};
    const auto back = Found::from_json(found.to_json());
    ASSERT_TRUE(back.ok()) << back.error().to_string();
    ASSERT_EQ(back->lines.size(), 1u);
    EXPECT_EQ(back->to_json(), found.to_json());
    EXPECT_TRUE(back->lines[0].call.in_place);
    EXPECT_EQ(back->notes, found.notes);
    EXPECT_FALSE(Found::from_json("{\"lines\": [{}], \"notes\": []}").ok());
    EXPECT_FALSE(Found::from_json("half of").ok());
}

TEST(CollectivePlan, TheSlowestRankCountsAndAllThatIsWrong) {
    const Call call{Collective::all_reduce, Dtype::f32, ReduceOp::sum, 2, 8, Mode::stream, false};
    const auto merged =
        merge({{line_of(call, "sidestep", {1, 5}, 2)}, {line_of(call, "sidestep", {3, 4}, 1)}});
    ASSERT_TRUE(merged.ok());
    EXPECT_EQ(merged->front().us.values, (std::vector<double>{3, 5}));
    EXPECT_EQ(merged->front().wrong, 3);
    const auto unseen = merge({{line_of(call, "sidestep", {1}, -1)}, {line_of(call, "sidestep", {1}, -1)}});
    EXPECT_EQ(unseen->front().wrong, -1);
    EXPECT_FALSE(merge({{line_of(call, "sidestep", {1})}, {}}).ok());
    EXPECT_FALSE(merge({{line_of(call, "sidestep", {1})}, {line_of(call, "NCCL", {1})}}).ok());
    EXPECT_FALSE(merge({{line_of(call, "sidestep", {1})}, {line_of(call, "sidestep", {1, 2})}}).ok());
}

TEST(CollectivePlan, LargeCallsAreSampledLess) {
    Plan plan;
    Call call;
    call.bytes = 1_MiB;
    EXPECT_EQ(samples_of(plan, call), 100);
    EXPECT_EQ(iterations_of(plan, call), 20);
    EXPECT_EQ(launches_of(plan, call), 1) << "on a stream there is nothing to launch";
    call.mode = Mode::graph;
    EXPECT_EQ(launches_of(plan, call), 10);
    call.bytes = 64_MiB;
    EXPECT_EQ(launches_of(plan, call), 1);
    EXPECT_EQ(samples_of(plan, call), 10);
    EXPECT_EQ(iterations_of(plan, call), 5);
    plan.samples = 1;
    plan.iterations = 1;
    EXPECT_EQ(samples_of(plan, call), 1);
    EXPECT_EQ(iterations_of(plan, call), 1);
}

TEST(CollectivePlan, QuantilesAreSamples) {
    const Samples samples{{4, 1, 3, 2}};
    EXPECT_EQ(quantile(samples, 0.99), 4);
    EXPECT_EQ(quantile(samples, 0.5), 2);
    EXPECT_EQ(quantile(samples, 0), 1);
    EXPECT_EQ(quantile({}, 0.5), 0);
}

TEST(CollectiveTable, HasTheColumnsAndTheQuickestOfNccl) {
    Call call{Collective::all_reduce, Dtype::f32, ReduceOp::sum, 2048, 8192, Mode::graph, false};
    Call in = call;
    in.in_place = true;
    const std::vector<Line> lines{
        line_of(call, "sidestep", {4}, 0), line_of(call, "NCCL 2.28.9, default", {16}, 0),
        line_of(call, "NCCL 2.28.9, symmetric", {8}, 5), line_of(in, "sidestep", {5}, 1),
        line_of(in, "NCCL 2.28.9, default", {10}, 0)};
    Table table(4, 0, "a process a GPU");
    std::string text = table.rows(lines);
    text += table.end();
    EXPECT_EQ(text.find("# all_reduce"), text.rfind("# all_reduce")) << text;
    EXPECT_NE(text.find("all_reduce, in a CUDA graph, 4 ranks, a process a GPU"), std::string::npos) << text;
    for (const char* word :
         {"size", "count", "type", "redop", "root", "time", "p99", "algbw", "busbw", "#wrong"})
        EXPECT_NE(text.find(word), std::string::npos) << word;
    // 8192 B in 4 us: 2.05 GB/s, 3.07 over the links.
    EXPECT_NE(text.find("      8192         2048     float     sum    -1       4.00       4.00     2.05     "
                        "3.07       0"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("  2.00  sidestep\n"), std::string::npos) << text;
    EXPECT_NE(text.find("NCCL 2.28.9, symmetric / NCCL 2.28.9, default\n"), std::string::npos) << text;
    EXPECT_NE(
        text.find("2.00 times as quick as NCCL's best mode of each size, 4.00 times as quick as its default"),
        std::string::npos)
        << text;
    EXPECT_EQ(wrong_of(lines), 1);  // NCCL's own do not count
}

TEST(CollectiveTable, WithoutNcclThereIsNoComparison) {
    const Call call{Collective::broadcast, Dtype::u8, ReduceOp::sum, 8, 8, Mode::stream, false};
    Table table(2, 1, "one process, a thread a GPU");
    const std::string text = table.rows({line_of(call, "sidestep", {4}, -1)});
    EXPECT_NE(text.find("broadcast, on a stream, 2 ranks"), std::string::npos);
    EXPECT_NE(text.find("     uint8    none     1 "), std::string::npos) << text;
    EXPECT_EQ(text.find("NCCL"), std::string::npos) << text;
}

TEST(CollectiveTable, FiguresHaveTheOthersBesideThem) {
    const auto context = Context::open({"dgx-h100"});
    ASSERT_TRUE(context.ok()) << context.error().to_string();
    const Call call{Collective::all_gather, Dtype::bf16, ReduceOp::sum, 512, 4096, Mode::graph, true};
    const auto figures =
        figures_of(*context, {0, 1, 2, 3},
                   {line_of(call, "sidestep", {2}, 0), line_of(call, "NCCL 2.28.9, default", {4}, 0)});
    ASSERT_EQ(figures.size(), 2u);
    EXPECT_EQ(figures[0].what, "all_gather bfloat16, graph, in place, time");
    EXPECT_EQ(figures[0].unit, "us");
    EXPECT_FALSE(figures[0].more_is_better);
    EXPECT_TRUE(figures[0].verified);
    EXPECT_EQ(figures[1].what, "all_gather bfloat16, graph, in place, bus bandwidth");
    EXPECT_DOUBLE_EQ(figures[1].measured.median(), 4096 * 0.75 / 2 / 1000);
    ASSERT_EQ(figures[1].peers.size(), 1u);
    EXPECT_DOUBLE_EQ(figures[1].peers[0].samples.median(), 4096 * 0.75 / 4 / 1000);
    EXPECT_EQ(figures[1].limit, 0);  // of an emulated machine none is known
}

}  // namespace
}  // namespace sidestep::bench::collective
