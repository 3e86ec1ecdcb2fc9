// Which figures stand together on the page.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "bench/html/chart_axes.hpp"
#include "bench/html/groups.hpp"
#include "tests/unit/bench/example_reports.hpp"

namespace sidestep::bench::html {
namespace {

Figure figure(const std::string& from, const std::string& to, Bytes bytes, const std::string& words = "",
              const std::string& unit = "GB/s") {
    Figure made;
    made.what = fmt::format("{} -> {}{}{}", from, to, words.empty() ? "" : ", ", words);
    made.from = from;
    made.to = to;
    made.bytes = bytes;
    made.unit = unit;
    made.measured = {{10}};
    return made;
}

CaseResult case_of(std::vector<Figure> figures) {
    return {"key", "", "", "", std::move(figures), {}};
}

TEST(PageGroups, PlacesOfOneSizeAndUnitMakeAMatrix) {
    const CaseResult result = case_of({figure("gpu:10", "gpu:2", 1024), figure("gpu:2", "gpu:10", 1024)});
    const Groups groups = group(result);
    ASSERT_EQ(groups.matrices.size(), 1U);
    const Matrix& matrix = groups.matrices[0].at(0);
    EXPECT_EQ(matrix.from, (std::vector<std::string>{"gpu:2", "gpu:10"}));
    EXPECT_EQ(matrix.to, matrix.from);
    EXPECT_EQ(matrix.cells.at({"gpu:2", "gpu:10"}), &result.figures[1]);
    EXPECT_TRUE(groups.rest.empty());
    EXPECT_TRUE(groups.charts.empty());
}

TEST(PageGroups, WordsUnitsAndKindsOfPlacesMakeMatricesOfTheirOwn) {
    std::vector<Figure> figures;
    for (const char* to : {"gpu:0", "gpu:1"}) {
        figures.push_back(figure("gpu:7", to, 1024, "copy engine"));
        figures.push_back(figure("gpu:7", to, 1024, "kernel"));
        figures.push_back(figure("gpu:7", to, 1024, "kernel", "us"));
        figures.push_back(figure("host:1", to, 1024, "kernel"));
    }
    const CaseResult result = case_of(figures);
    const Groups groups = group(result);
    ASSERT_EQ(groups.matrices.size(), 4U);
    EXPECT_EQ(groups.matrices[0][0].words, "copy engine");
    EXPECT_EQ(groups.matrices[2][0].unit, "us");
    EXPECT_EQ(groups.matrices[3][0].ends, "host -> gpu");
    for (const auto& sizes : groups.matrices) EXPECT_EQ(sizes[0].cells.size(), 2U);
}

TEST(PageGroups, SizesMakeCurvesAndTheGreatestComesFirstInMatrices) {
    std::vector<Figure> figures;
    for (const Bytes bytes : {Bytes{4096}, Bytes{65536}, Bytes{1024}})
        for (const char* to : {"gpu:1", "gpu:2"}) figures.push_back(figure("gpu:0", to, bytes));
    const CaseResult result = case_of(figures);
    const Groups groups = group(result);
    ASSERT_EQ(groups.matrices.size(), 1U);
    ASSERT_EQ(groups.matrices[0].size(), 3U);
    EXPECT_EQ(groups.matrices[0][0].bytes, 65536U);
    ASSERT_EQ(groups.charts.size(), 1U);
    ASSERT_EQ(groups.charts[0].charts.size(), 2U);
    const Curve& curve = groups.charts[0].charts[1].curves.at(0);
    ASSERT_EQ(curve.points.size(), 3U);
    EXPECT_EQ(curve.points[0]->bytes, 1024U);
    EXPECT_EQ(curve.points[2]->bytes, 65536U);
    EXPECT_EQ(curve.points[2]->to, "gpu:2");
}

TEST(PageGroups, WaysBetweenTheSameEndsShareAChartWhileTheyAreToldApart) {
    std::vector<Figure> figures;
    for (int way = 0; way < 3; ++way)
        for (const Bytes bytes : {Bytes{4096}, Bytes{8192}})
            figures.push_back(figure("host", "gpu:0", bytes, std::to_string(way) + " lanes"));
    const CaseResult few = case_of(figures);
    const Groups together = group(few);
    ASSERT_EQ(together.charts.at(0).charts.size(), 1U);
    EXPECT_EQ(together.charts[0].charts[0].curves.at(2).name, "2 lanes");
    for (Figure& one : figures) one.peers = {{"loop", {}}, {"tool", {}}};
    const CaseResult many = case_of(figures);
    EXPECT_EQ(group(many).charts.at(0).charts.size(), 3U);
}

TEST(PageGroups, WhatStandsAloneIsInTheRest) {
    Figure plain;
    plain.what = "submit";
    const CaseResult result = case_of({plain, figure("gpu:0", "gpu:1", 0), figure("gpu:0", "host", 64)});
    const Groups groups = group(result);
    EXPECT_TRUE(groups.matrices.empty());
    EXPECT_TRUE(groups.charts.empty());
    EXPECT_EQ(groups.rest.size(), 3U);
}

TEST(PageGroups, NoFigureIsLost) {
    for (const Report& report : {example_report(), hostile_report()})
        for (const CaseResult& result : report.cases) {
            std::set<const Figure*> seen;
            const Groups groups = group(result);
            for (const auto& sizes : groups.matrices)
                for (const Matrix& matrix : sizes)
                    for (const auto& cell : matrix.cells) seen.insert(cell.second);
            for (const ChartRow& row : groups.charts)
                for (const Chart& chart : row.charts)
                    for (const Curve& curve : chart.curves)
                        seen.insert(curve.points.begin(), curve.points.end());
            for (const Figure* one : groups.rest) EXPECT_TRUE(seen.insert(one).second) << one->what;
            EXPECT_EQ(seen.size(), result.figures.size()) << result.key;
        }
}

// Two figures of the same ends, words, unit and size: the second one is not a cell and no point.
TEST(PageGroups, ASecondFigureOfTheSameCellIsInTheRest) {
    const CaseResult result = case_of({figure("gpu:0", "gpu:1", 64), figure("gpu:0", "gpu:1", 64),
                                       figure("gpu:1", "gpu:0", 64), figure("gpu:0", "gpu:1", 128)});
    const Groups groups = group(result);
    ASSERT_EQ(groups.rest.size(), 1U);
    EXPECT_EQ(groups.rest[0], &result.figures[1]);
}

TEST(PageGroups, PeersWhoseNamesDifferInNumbersAreOneCurve) {
    std::vector<Figure> figures(3);
    figures[0].peers = {{"memcpy, 2 threads", {{1}}}, {"tool 0.8", {{1}}}};
    figures[1].peers = {{"memcpy, 16 threads", {{1}}}, {"tool 0.8", {{1}}}};
    figures[2].peers = {{"memcpy, 4 threads", {{1}}}};
    const auto curves = peer_curves({&figures[0], &figures[1], &figures[2]});
    ASSERT_EQ(curves.size(), 2U);
    EXPECT_EQ(curves[0].size(), 3U);
    EXPECT_EQ(one_name(curves[0]), "memcpy, 2 .. 16 threads");
    EXPECT_EQ(one_name(curves[1]), "tool 0.8");
    figures[2].peers.push_back({"memcpy, 8 threads", {{1}}});
    EXPECT_EQ(peer_curves({&figures[0], &figures[1], &figures[2]}).size(), 5U);
    EXPECT_EQ(one_name({"one lane", "all lanes"}), "one lane; all lanes");
    EXPECT_EQ(one_name({}), "");
}

TEST(PageGroups, PlacesAreTakenOutOfTheWords) {
    Figure one = figure("gpu:1", "gpu:12", 0, "copy engine");
    EXPECT_EQ(words_without_places(one), "copy engine");
    one.what = "kernel, gpu:1 <-> gpu:12, both";
    EXPECT_EQ(words_without_places(one), "kernel, both");
    one.what = "read by gpu:12 from gpu:1";
    EXPECT_EQ(words_without_places(one), "read by … from …");
    one.what = "gpu:123 stays";
    EXPECT_EQ(words_without_places(one), "gpu:123 stays");
}

TEST(PageGroups, NumbersInNamesSortAsNumbers) {
    EXPECT_TRUE(stands_before("gpu:2", "gpu:10"));
    EXPECT_FALSE(stands_before("gpu:10", "gpu:2"));
    EXPECT_TRUE(stands_before("gpu:1", "host"));
    EXPECT_TRUE(stands_before("node2/gpu:9", "node10/gpu:1"));
    EXPECT_FALSE(stands_before("gpu:1", "gpu:1"));
    EXPECT_TRUE(stands_before("gpu", "gpu:1"));
    // An order has to hold for names that differ only in zeros too.
    EXPECT_NE(stands_before("gpu:01", "gpu:1"), stands_before("gpu:1", "gpu:01"));
}

ChartRow row_of(const CaseResult& result) {
    return group(result).charts.at(0);
}

TEST(PageAxes, SizesAreLogarithmicAndValuesWhereTheyDifferMuch) {
    std::vector<Figure> figures;
    for (Bytes bytes = 4096; bytes <= Bytes{4} << 30; bytes *= 4) {
        figures.push_back(figure("host", "gpu:0", bytes));
        figures.back().measured = {{static_cast<double>(bytes) / 1e7}};
        figures.back().limit = 500;
    }
    const CaseResult result = case_of(figures);
    const Axes axes = axes_of(row_of(result));
    EXPECT_TRUE(axes.logarithmic);
    EXPECT_DOUBLE_EQ(axes.x(4096), axes.area.left);
    EXPECT_DOUBLE_EQ(axes.x(4294967296.0), axes.area.right);
    EXPECT_NEAR(axes.x(1 << 22), (axes.area.left + axes.area.right) / 2, 1e-6);
    EXPECT_GE(axes.y(500), axes.area.top);
    EXPECT_EQ(axes.size_marks.front().label, "4 KiB");
    EXPECT_LE(axes.size_marks.size(), 7U);
    EXPECT_FALSE(axes.can_show(0));
    for (Figure& one : figures) one.measured = {{400}};
    const CaseResult even = case_of(figures);
    const Axes linear = axes_of(row_of(even));
    EXPECT_FALSE(linear.logarithmic);
    EXPECT_EQ(linear.value_marks.front().label, "0");
    EXPECT_DOUBLE_EQ(linear.y(0), linear.area.bottom);
}

TEST(PageAxes, ValuesThatAreNoNumbersLeaveTheAxesAlone) {
    for (const double value : {0.0, -3.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
        std::vector<Figure> figures = {figure("host", "gpu:0", 1), figure("host", "gpu:0", ~Bytes{0})};
        for (Figure& one : figures) {
            one.measured = {{value}};
            one.limit = value;
        }
        const CaseResult result = case_of(figures);
        const Axes axes = axes_of(row_of(result));
        EXPECT_TRUE(std::isfinite(axes.min) && std::isfinite(axes.max)) << value;
        EXPECT_LT(axes.min, axes.max) << value;
        EXPECT_FALSE(axes.size_marks.empty()) << value;
        EXPECT_LE(axes.value_marks.size(), 12U) << value;
    }
}

}  // namespace
}  // namespace sidestep::bench::html
