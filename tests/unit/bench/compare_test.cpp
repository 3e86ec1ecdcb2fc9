#include "bench/compare.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sidestep::bench {
namespace {

Report with(const std::vector<double>& samples, bool more_is_better = true) {
    Figure figure;
    figure.what = "host -> gpu:0";
    figure.bytes = 1 << 20;
    figure.unit = more_is_better ? "GB/s" : "us";
    figure.more_is_better = more_is_better;
    figure.measured.values = samples;
    Report report;
    report.machine = "live";
    CaseResult result;
    result.key = "host_link";
    result.figures = {figure};
    report.cases = {result};
    return report;
}

Change change(const std::vector<double>& before, const std::vector<double>& after,
              bool more_is_better = true) {
    const Comparison comparison = compare(with(before, more_is_better), with(after, more_is_better));
    EXPECT_EQ(comparison.figures.size(), 1u);
    return comparison.figures.empty() ? Change::unclear : comparison.figures[0].change;
}

// 100, give or take 1.
const std::vector<double> steady = {99, 100, 101, 100, 99.5, 100.5, 100};
std::vector<double> times(double factor) {
    std::vector<double> values = steady;
    for (double& value : values) value *= factor;
    return values;
}

TEST(Compare, TheSameIsTheSame) {
    EXPECT_EQ(change(steady, steady), Change::same);
}

TEST(Compare, ATrueChangeIsFoundEachWay) {
    EXPECT_EQ(change(steady, times(0.9)), Change::worse);
    EXPECT_EQ(change(steady, times(1.1)), Change::better);
    EXPECT_EQ(change(steady, times(0.9), false), Change::better);
    EXPECT_EQ(change(steady, times(1.1), false), Change::worse);
}

TEST(Compare, NoiseIsNotReported) {
    // 10 % apart, where samples are 20 % apart themselves.
    const std::vector<double> noisy = {80, 120, 100, 90, 110, 85, 115};
    std::vector<double> lower;
    for (const double value : noisy) lower.push_back(value * 0.9);
    EXPECT_EQ(change(noisy, lower), Change::same);
}

TEST(Compare, LessThanTwoPercentIsNoChangeHoweverSteady) {
    EXPECT_EQ(change({100, 100, 100, 100, 100}, {98.5, 98.5, 98.5, 98.5, 98.5}), Change::same);
    EXPECT_EQ(change({100, 100, 100, 100, 100}, {97, 97, 97, 97, 97}), Change::worse);
}

TEST(Compare, OneOutlierNeitherHidesNorMakesAChange) {
    EXPECT_EQ(change({100, 100, 100, 100, 100, 100, 10}, {100, 100, 100, 100, 100, 100, 100}), Change::same);
    EXPECT_EQ(change({100, 101, 100, 99, 100, 100, 10}, {80, 81, 80, 79, 80, 80, 80}), Change::worse);
}

TEST(Compare, TwoHeapsThatShareAHeapAreNoise) {
    // Most samples are equal, so their median distance is 0; the heap of 50 is in both.
    EXPECT_EQ(change({100, 100, 100, 100, 50, 50, 50}, {50, 50, 50, 50, 100, 100, 100}), Change::same);
}

TEST(Compare, FewSamplesAreUnclear) {
    EXPECT_EQ(change({100}, {50}), Change::unclear);
    EXPECT_EQ(change({100, 100, 100, 100}, {50, 50, 50, 50, 50}), Change::unclear);
    EXPECT_EQ(change({100}, {101}), Change::same);
}

TEST(Compare, SaysHowMuch) {
    const Comparison comparison = compare(with(steady), with(times(0.9)));
    const FigureChange& figure = comparison.figures.at(0);
    EXPECT_EQ(figure.key, "host_link");
    EXPECT_EQ(figure.before, 100);
    EXPECT_EQ(figure.after, 90);
    EXPECT_DOUBLE_EQ(figure.percent, -10);
    EXPECT_GE(figure.noise_percent, 2);
    EXPECT_EQ(comparison.count(Change::worse), 1);
    EXPECT_NE(comparison.to_text(false).find("100.0 -> 90.00 GB/s"), std::string::npos)
        << comparison.to_text(false);
    const auto json = nlohmann::json::parse(comparison.to_json());
    EXPECT_EQ(json["worse"], 1);
    EXPECT_EQ(json["figures"][0]["change"], "worse");
}

TEST(Compare, WhatIsTheSameIsListedWhenAskedFor) {
    const Comparison comparison = compare(with(steady), with(steady));
    EXPECT_EQ(comparison.to_text(false).find("host -> gpu:0"), std::string::npos);
    EXPECT_NE(comparison.to_text(true).find("host -> gpu:0"), std::string::npos);
}

TEST(Compare, FiguresAreTheSameByCaseNameSizeAndUnit) {
    for (const int member : {0, 1, 2, 3}) {
        Report after = with(steady);
        if (member == 0) after.cases[0].key = "other";
        if (member == 1) after.cases[0].figures[0].what = "other";
        if (member == 2) after.cases[0].figures[0].bytes *= 2;
        if (member == 3) after.cases[0].figures[0].unit = "M/s";
        const Comparison comparison = compare(with(steady), after);
        EXPECT_TRUE(comparison.figures.empty());
        EXPECT_EQ(comparison.only_before.size(), 1u);
        EXPECT_EQ(comparison.only_after.size(), 1u);
    }
}

TEST(Compare, FiguresOfOneNameArePairedInTheirOrder) {
    Report before = with(steady), after = with(steady);
    before.cases[0].figures.push_back(before.cases[0].figures[0]);
    after.cases[0].figures.push_back(with(times(0.5)).cases[0].figures[0]);
    const Comparison comparison = compare(before, after);
    ASSERT_EQ(comparison.figures.size(), 2u);
    EXPECT_EQ(comparison.figures[0].change, Change::same);
    EXPECT_EQ(comparison.figures[1].change, Change::worse);
}

TEST(Compare, OtherMachinesAreSaid) {
    Report after = with(steady);
    EXPECT_TRUE(compare(with(steady), after).notes.empty());
    after.machine = "dgx-h100";
    after.driver = "580";
    const auto notes = compare(with(steady), after).notes;
    ASSERT_EQ(notes.size(), 2u);
    EXPECT_NE(notes[0].find("live before, dgx-h100 after"), std::string::npos);
    EXPECT_NE(notes[1].find("none before, 580 after"), std::string::npos);
}

TEST(Compare, FiguresWithoutSamplesAreSaid) {
    const Comparison comparison = compare(with({}), with(steady));
    EXPECT_TRUE(comparison.figures.empty());
    EXPECT_EQ(comparison.notes.size(), 1u);
}

}  // namespace
}  // namespace sidestep::bench
