#include "bench/case.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "bench/run.hpp"
#include "bench/text.hpp"

namespace sidestep::bench {
namespace {

Context emulated() {
    auto context = Context::open({"dgx-a100"});
    EXPECT_TRUE(context.ok());
    return std::move(*context);
}

TEST(Options, SizesAskedForElseTheCasesElseASmallOne) {
    Options options;
    EXPECT_EQ(options.sizes_or({8, 4}), (std::vector<Bytes>{8, 4}));
    options.smoke = true;
    EXPECT_EQ(options.sizes_or({8, 4}), (std::vector<Bytes>{4}));
    EXPECT_EQ(options.sizes_or({1_GiB}), (std::vector<Bytes>{1_MiB}));
    options.sizes = {7};
    EXPECT_EQ(options.sizes_or({8, 4}), (std::vector<Bytes>{7}));
}

TEST(Options, PlacesAskedFor) {
    Options options;
    options.gpus = {1, 2};
    EXPECT_TRUE(options.wants(Place::gpu(1), Place::host()));
    EXPECT_FALSE(options.wants(Place::gpu(1), Place::gpu(0)));
    options.from = Place::gpu(1);
    EXPECT_TRUE(options.wants(Place::gpu(1), Place::gpu(2)));
    EXPECT_FALSE(options.wants(Place::gpu(2), Place::gpu(1)));
    const Context context = emulated();
    EXPECT_EQ(gpus_of(context, options), (std::vector<int>{1, 2}));
    EXPECT_EQ(pairs_of(context, options).size(), 1u);
}

TEST(MeasureRate, WarmUpDoesNotCountAndTheYardstickIsTheLimit) {
    Options options;
    options.samples = 3;
    Figure figure;
    figure.bytes = 1'000'000'000;
    int calls = 0;
    const auto measured =
        measure_rate(figure, options, [&]() -> Result<double> { return ++calls == 1 ? 100.0 : 0.5; },
                     {{"plain", []() -> Result<double> { return 0.25; }}});
    ASSERT_TRUE(measured.ok());
    EXPECT_EQ(calls, 4);
    EXPECT_EQ(measured->measured.values, (std::vector<double>{2, 2, 2}));
    EXPECT_EQ(measured->limit, 4);
    EXPECT_EQ(measured->limit_source, "raw loop, same run: plain");
    ASSERT_EQ(measured->peers.size(), 1u);
    EXPECT_EQ(measured->peers[0].samples.values.size(), 3u);
}

TEST(MeasureRate, ALimitOfTheLinkIsKept) {
    Options options;
    options.samples = 1;
    Figure figure;
    figure.bytes = 1'000'000'000;
    figure.limit = 55;
    figure.limit_source = "link";
    const auto measured = measure_rate(figure, options, []() -> Result<double> { return 0.1; },
                                       {{"plain", []() -> Result<double> { return 0.25; }}});
    ASSERT_TRUE(measured.ok());
    EXPECT_EQ(measured->limit, 55);
    EXPECT_EQ(measured->limit_source, "link");
}

TEST(MeasureRate, TheFirstFailureEndsIt) {
    const Error broken{ErrorCode::device_error, "broken", "", ""};
    EXPECT_FALSE(measure_rate({}, {}, [&]() -> Result<double> { return broken; }).ok());
    EXPECT_FALSE(measure_rate({}, {}, []() -> Result<double> { return 1.0; },
                              {{"plain", [&]() -> Result<double> { return broken; }}})
                     .ok());
}

TEST(Paint, WhatWasPaintedIsSeenAndOneWrongByteToo) {
    const Context context = emulated();
    const Bytes bytes = 20_MiB + 4099;  // more than one window, and no whole page at the end
    for (const Place& place : {Place::host(), Place::gpu(0)}) {
        auto memory = context.allocate(place, bytes);
        ASSERT_TRUE(memory.ok());
        ASSERT_TRUE(paint(context, memory->buffer(), 1).ok());
        EXPECT_TRUE(check_painted(context, memory->buffer(), 1).ok());
        EXPECT_FALSE(check_painted(context, memory->buffer(), 2).ok());
        for (const Bytes at : {Bytes{0}, Bytes{5000}, bytes - 1}) {
            char* byte = static_cast<char*>(memory->address()) + at;  // emulated GPUs live in host memory
            *byte = static_cast<char>(~*byte);
            const auto seen = check_painted(context, memory->buffer(), 1);
            ASSERT_FALSE(seen.ok());
            EXPECT_EQ(seen.error().code, ErrorCode::mismatch);
            EXPECT_NE(seen.error().message.find(" byte " + std::to_string(at) + " "), std::string::npos);
            *byte = static_cast<char>(~*byte);
        }
    }
}

TEST(Paint, PagesThatChangePlacesAreSeen) {
    const Context context = emulated();
    auto memory = context.allocate(Place::host(), 40_MiB);
    ASSERT_TRUE(memory.ok());
    ASSERT_TRUE(paint(context, memory->buffer(), 1).ok());
    auto* bytes = static_cast<char*>(memory->address());
    std::memcpy(bytes, bytes + 16_MiB, 4096);
    EXPECT_FALSE(check_painted(context, memory->buffer(), 1).ok());
}

TEST(PaintedPair, VerifiesTheCopyAndNothingElse) {
    const Context context = emulated();
    const auto ends = PaintedPair::make(context, Place::gpu(0), Place::gpu(1), 1_MiB);
    ASSERT_TRUE(ends.ok());
    Figure figure;
    Options options;
    EXPECT_FALSE(ends->verify(context, options, figure).ok());  // nothing was copied yet
    EXPECT_FALSE(figure.verified);
    ASSERT_TRUE(timed_copy(context, ends->from(), ends->to(), {}, &figure.path).ok());
    EXPECT_TRUE(ends->verify(context, options, figure).ok());
    EXPECT_TRUE(figure.verified);
    EXPECT_NE(figure.path.find("gpu:0 -> gpu:1"), std::string::npos) << figure.path;
}

TEST(AllCases, HaveKeysOfTheirOwn) {
    std::set<std::string> keys;
    for (const Case& test : all_cases()) {
        EXPECT_TRUE(keys.insert(test.key).second) << test.key;
        EXPECT_FALSE(test.description.empty());
        EXPECT_EQ(test.key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos)
            << test.key;
    }
}

TEST(RunCase, SkipsFailsOrMeasures) {
    const Context context = emulated();
    const auto result = [&](std::string missing, Result<std::vector<Figure>> figures) {
        const Case test{"key", "words", [missing](const Context&) { return missing; },
                        [figures](const Context&, const Options&) { return figures; }};
        return run_case(test, context, {});
    };
    EXPECT_EQ(result("no card", std::vector<Figure>(1)).skipped, "no card");
    EXPECT_EQ(result("", Error{ErrorCode::io_error, "broken", "", ""}).failed, "broken");
    EXPECT_EQ(result("", std::vector<Figure>(2)).figures.size(), 2u);
    EXPECT_FALSE(result("", std::vector<Figure>()).skipped.empty());
}

TEST(Text, AFigureSaysLimitShareAndVerdict) {
    CaseResult result{"host_link", "Each way", "", "", {}, {"a note"}};
    Figure figure;
    figure.what = "host -> gpu:0";
    figure.bytes = 1_GiB;
    figure.unit = "GB/s";
    figure.measured.values = {55, 55.4, 55.5};
    figure.limit = 55.5;
    figure.limit_source = "link: PCIe gen5 x16";
    figure.peers = {{"nvbandwidth", {{55.53}}}};
    figure.verified = true;
    figure.verdict = Verdict::fail;
    figure.threshold = 60;
    result.figures = {figure};
    const std::string text = case_text(result);
    for (const char* part : {"host_link: Each way", "1 GiB", "55.40 GB/s", "[55.00 .. 55.50]", "99.8 %",
                             "of 55.50 (link: PCIe gen5 x16)", "nvbandwidth: 55.53", "verified",
                             "FAIL: at least 60.00", "note: a note"})
        EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// A line for each pair of two GPUs, and for each GPU of three; what fails has a line of its own.
TEST(Text, ManyPairsAreAMatrix) {
    const auto text_of = [](int gpus) {
        CaseResult result{"peer_engine", "Every pair", "", "", {}, {}};
        for (int from = 0; from < gpus; ++from)
            for (int to = 0; to < gpus; ++to) {
                if (from == to) continue;
                Figure figure;
                figure.from = "gpu:" + std::to_string(from);
                figure.to = "gpu:" + std::to_string(to);
                figure.what = figure.from + " -> " + figure.to + ", copy engine";
                figure.bytes = 1_GiB;
                figure.unit = "GB/s";
                figure.measured.values = {100.0 * from + to};
                figure.limit = 400;
                figure.limit_source = "link";
                figure.peers = {{"nvbandwidth", {{100}}}};
                if (from == 3 && to == 0) figure.verdict = Verdict::fail;
                result.figures.push_back(figure);
            }
        return case_text(result);
    };
    EXPECT_NE(text_of(2).find("gpu:1 -> gpu:0, copy engine  1 GiB  100.0 GB/s"), std::string::npos)
        << text_of(2);
    EXPECT_EQ(text_of(3),
              "peer_engine: Every pair\n"
              "  copy engine, 1 GiB, GB/s, medians\n"
              "  from \\ to  gpu:0  gpu:1  gpu:2\n"
              "  gpu:0      -      1.000  2.000\n"
              "  gpu:1      100.0  -      102.0\n"
              "  gpu:2      200.0  201.0  -\n"
              "  0.2 to 50.2 % of the limit (link)\n"
              "  1.0 to 201.0 % of nvbandwidth\n");
    EXPECT_NE(text_of(4).find("gpu:3 -> gpu:0, copy engine"), std::string::npos) << text_of(4);
}

}  // namespace
}  // namespace sidestep::bench
