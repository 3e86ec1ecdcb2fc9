// What ranks send, what has to come out, and whether a library that is wrong is found out.
#include "bench/collective/elements.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "bench/collective/launch.hpp"
#include "bench/collective/table.hpp"

namespace sidestep::bench::collective {
namespace {

constexpr Dtype every_type[] = {Dtype::i8,  Dtype::u8,   Dtype::i32,     Dtype::u32,
                                Dtype::i64, Dtype::u64,  Dtype::f16,     Dtype::f32,
                                Dtype::f64, Dtype::bf16, Dtype::f8_e4m3, Dtype::f8_e5m2};
constexpr ReduceOp every_reduction[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::min,
                                        ReduceOp::max, ReduceOp::avg,  ReduceOp::scaled_sum};

std::uint32_t bits_of_value(Dtype type, double value) {
    std::byte bytes[8] = {};
    encode(type, value, bytes);
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes, sizeof bits);
    return bits;
}

// Against the formats' own definitions: IEEE 754 binary16, bfloat16, OCP 8-bit floats.
TEST(CollectiveElements, SmallFloats) {
    EXPECT_EQ(bits_of_value(Dtype::f16, 1), 0x3c00u);
    EXPECT_EQ(bits_of_value(Dtype::f16, -2.5), 0xc100u);
    EXPECT_EQ(bits_of_value(Dtype::f16, std::ldexp(1, -24)), 0x0001u);
    EXPECT_EQ(bits_of_value(Dtype::f16, 2049), 0x6800u);  // a tie, to even
    EXPECT_EQ(bits_of_value(Dtype::f16, 2051), 0x6802u);
    EXPECT_EQ(bits_of_value(Dtype::bf16, 3), 0x4040u);
    EXPECT_EQ(bits_of_value(Dtype::f8_e4m3, 1), 0x38u);
    EXPECT_EQ(bits_of_value(Dtype::f8_e4m3, -9), 0xd1u);
    EXPECT_EQ(bits_of_value(Dtype::f8_e5m2, 1.75), 0x3fu);
    EXPECT_EQ(bits_of_value(Dtype::f8_e5m2, 0), 0x00u);
    EXPECT_EQ(bits_of_value(Dtype::f16, 1.9999), 0x4000u);  // a carry into the exponent
}

TEST(CollectiveElements, EveryTypeReadsWhatItWrote) {
    for (const Dtype type : every_type)
        for (const double value : {0.0, 1.0, 2.0, 7.0, 16.0}) {
            std::byte bytes[8] = {};
            encode(type, value, bytes);
            EXPECT_EQ(decode(type, bytes), value) << to_string(type);
        }
}

// Sums of any order are the same number in every type, so what comes out is no matter of rounding.
TEST(CollectiveElements, WhatIsCombinedIsExact) {
    for (const Dtype type : every_type)
        for (const ReduceOp op : every_reduction) {
            const Call call{Collective::all_reduce, type, op, 100, 0, Mode::stream, false};
            const Elements elements(call, 8);
            for (std::uint64_t i = 0; i < 500; ++i) {
                double sum = 0, product = 1;
                for (int rank = 7; rank >= 0; --rank) {
                    const double value =
                        decode(type, elements.input(rank).data() + i * elements.element_bytes());
                    sum += value;
                    product *= value;
                }
                const double got = decode(type, elements.expected(call, 0, 0, i));
                if (op == ReduceOp::sum) {
                    ASSERT_EQ(got, sum) << to_string(type) << " at " << i;
                }
                if (op == ReduceOp::scaled_sum) {
                    ASSERT_EQ(got, 2 * sum) << to_string(type) << " at " << i;
                }
                if (op == ReduceOp::prod) {
                    ASSERT_EQ(got, product) << to_string(type) << " at " << i;
                }
            }
        }
}

TEST(CollectiveElements, RanksAndPlacesDiffer) {
    const Call call{Collective::all_gather, Dtype::u8, ReduceOp::sum, 4096, 0, Mode::stream, false};
    const Elements elements(call, 4);
    EXPECT_NE(elements.input(0), elements.input(1));
    // A block from the wrong rank, or from the place before, is not what is expected.
    int same = 0;
    for (std::uint64_t i = 0; i < 4096; ++i) {
        same += elements.same(elements.expected(call, 0, 0, i), elements.expected(call, 0, 0, i + 4096));
        same += elements.same(elements.expected(call, 0, 0, i), elements.expected(call, 0, 0, i + 1));
    }
    EXPECT_LT(same, 2 * 4096 / 64);
}

TEST(CollectiveElements, AveragesOfFloatsMayBeTwoUnitsOff) {
    const Call average{Collective::all_reduce, Dtype::f32, ReduceOp::avg, 1, 0, Mode::stream, false};
    const Call sum{Collective::all_reduce, Dtype::f32, ReduceOp::sum, 1, 0, Mode::stream, false};
    const float value = 1.0f / 3, near = std::nextafter(value, 1.0f), far = value * 1.00001f;
    const auto bytes = [](const float& number) { return reinterpret_cast<const std::byte*>(&number); };
    EXPECT_TRUE(Elements(average, 2).same(bytes(value), bytes(near)));
    EXPECT_FALSE(Elements(average, 2).same(bytes(value), bytes(far)));
    EXPECT_FALSE(Elements(sum, 2).same(bytes(value), bytes(near)));
}

TEST(CollectiveElements, SkewedBlocksComeFromTheRightPlace) {
    const Call call{Collective::all_to_all_v, Dtype::i32, ReduceOp::sum, 10, 0, Mode::stream, false};
    const Elements elements(call, 3);
    // Rank 0 sends blocks of 10, 80 and 10; the others of 10.
    EXPECT_EQ(sent_elements(call, 0, 3), 100u);
    EXPECT_EQ(sent_elements(call, 2, 3), 30u);
    EXPECT_EQ(received_elements(call, 1, 3, 0), 100u);
    EXPECT_EQ(received_elements(call, 0, 3, 0), 30u);
    const auto from = [&](int rank, std::uint64_t i) { return elements.input(rank).data() + i * 4; };
    EXPECT_EQ(elements.expected(call, 1, 0, 0), from(0, 10));
    EXPECT_EQ(elements.expected(call, 1, 0, 79), from(0, 89));
    EXPECT_EQ(elements.expected(call, 1, 0, 80), from(1, 10));
    EXPECT_EQ(elements.expected(call, 2, 0, 5), from(0, 95));
    EXPECT_EQ(elements.expected(call, 0, 0, 29), from(2, 9));
}

// Every operation, type and reduction through real groups, a thread a rank.
TEST(CollectiveRun, NothingIsWrongOnEmulatedGpus) {
    const auto context = Context::open({"dgx-h100"});
    ASSERT_TRUE(context.ok()) << context.error().to_string();
    Plan plan;
    plan.operations = *parse_operations("all");
    plan.types = {Dtype::f32, Dtype::bf16, Dtype::i8};
    plan.reductions = {ReduceOp::sum, ReduceOp::max};
    plan.sizes = {4096};
    plan.modes = {Mode::stream};
    plan.iterations = 2;
    plan.samples = 1;
    plan.warmup = 0;
    plan.root = 1;
    plan.nccl = "libnccl.so.2";
    const auto found = run_in_threads(*context, {0, 1, 2}, plan);
    ASSERT_TRUE(found.ok()) << found.error().to_string();
    EXPECT_EQ(found->lines.size(), calls_of(plan, 3).size());
    for (const Line& line : found->lines) {
        EXPECT_EQ(line.missing, "");
        EXPECT_EQ(line.us.values.size(), 1u);
        EXPECT_EQ(line.wrong, line.call.operation == Collective::barrier ? -1 : 0)
            << to_string(line.call.operation);
    }
    EXPECT_EQ(found->notes, std::vector<std::string>{"NCCL cannot run on emulated GPUs"});
}

TEST(CollectiveRun, ARootThatIsNotThere) {
    const auto context = Context::open({"dgx-h100"});
    ASSERT_TRUE(context.ok()) << context.error().to_string();
    Plan plan;
    plan.operations = {Collective::broadcast};
    plan.sizes = {64};
    plan.root = 2;
    const auto found = run_in_threads(*context, {0, 1}, plan);
    ASSERT_FALSE(found.ok());
    EXPECT_NE(found.error().message.find("there is no rank 2"), std::string::npos)
        << found.error().to_string();
}

}  // namespace
}  // namespace sidestep::bench::collective
