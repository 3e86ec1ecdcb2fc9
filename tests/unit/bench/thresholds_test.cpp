#include "bench/thresholds.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "bench/run.hpp"

namespace sidestep::bench {
namespace {

Figure figure(const char* what, double median, bool more_is_better, double limit = 0, Bytes bytes = 0) {
    Figure figure;
    figure.what = what;
    figure.measured.values = {median};
    figure.more_is_better = more_is_better;
    figure.unit = more_is_better ? "GB/s" : "ns";
    figure.limit = limit;
    figure.bytes = bytes;
    return figure;
}

Report the_report() {
    CaseResult link, load;
    link.key = "host_link";
    link.figures = {figure("host -> gpu:0", 55, true, 56, 1 << 30),
                    figure("gpu:0 -> host", 50, true, 56, 1 << 30)};
    load.key = "latency_load";
    load.figures = {figure("gpu:0 reads gpu:1", 800, false)};
    Report report;
    report.cases = {link, load};
    return report;
}

Report judged(const std::string& lines, int failed) {
    const auto thresholds = thresholds_from_json(fmt::format("{{\"thresholds\": [{}]}}", lines), "file.json");
    EXPECT_TRUE(thresholds.ok()) << (thresholds.ok() ? "" : thresholds.error().to_string());
    Report out = the_report();
    if (thresholds) {
        EXPECT_EQ(judge(out, *thresholds), failed);
    }
    return out;
}

TEST(Thresholds, LeastValues) {
    const Report out = judged(R"({"case": "host_link", "min": 52})", 1);
    EXPECT_EQ(out.cases[0].figures[0].verdict, Verdict::pass);
    EXPECT_EQ(out.cases[0].figures[1].verdict, Verdict::fail);
    EXPECT_EQ(out.cases[0].figures[1].threshold, 52);
    EXPECT_EQ(out.cases[1].figures[0].verdict, Verdict::none);
    EXPECT_TRUE(out.notes.empty());
}

TEST(Thresholds, TheBoundItselfIsMet) {
    EXPECT_EQ(judged(R"({"case": "host_link", "min": 50})", 0).cases[0].figures[1].verdict, Verdict::pass);
    EXPECT_EQ(judged(R"({"case": "latency_load", "max": 800})", 0).cases[1].figures[0].verdict,
              Verdict::pass);
    judged(R"({"case": "latency_load", "max": 799})", 1);
}

TEST(Thresholds, SharesOfTheLimit) {
    const Report out = judged(R"({"case": "*", "figure": "host -> *", "min_share": 0.99})", 1);
    EXPECT_DOUBLE_EQ(out.cases[0].figures[0].threshold, 56 * 0.99);
    EXPECT_EQ(out.cases[0].figures[1].verdict, Verdict::none);
}

TEST(Thresholds, AShareOfNoLimitIsSaidAndNotJudged) {
    const Report out = judged(R"({"case": "latency_*", "min_share": 0.5})", 1);
    ASSERT_EQ(out.notes.size(), 2u);
    EXPECT_EQ(out.cases[1].figures[0].verdict, Verdict::none);
    EXPECT_NE(out.notes[0].find("no limit is known"), std::string::npos);
}

TEST(Thresholds, TheWrongDirectionFails) {
    const Report out = judged(R"({"case": "latency_load", "min": 1}, {"case": "host_link", "max": 99})", 3);
    EXPECT_EQ(out.notes.size(), 3u);
}

TEST(Thresholds, TheFirstLineThatFitsCounts) {
    const Report out = judged(
        R"({"case": "host_link", "figure": "gpu:? -> host", "min": 49}, {"case": "host_link", "min": 52})",
        0);
    EXPECT_EQ(out.cases[0].figures[1].threshold, 49);
    EXPECT_EQ(out.cases[0].figures[0].threshold, 52);
}

TEST(Thresholds, SizesAreToldApartAndUnusedLinesAreNamed) {
    const Report out = judged(R"({"case": "host_link", "bytes": 4096, "min": 52})", 1);
    ASSERT_EQ(out.notes.size(), 1u);
    EXPECT_NE(out.notes[0].find("thresholds[0]"), std::string::npos);
    judged(R"({"case": "host_link", "bytes": 1073741824, "min": 52})", 1);
}

TEST(Thresholds, BadFilesSayWhere) {
    const auto message = [](const std::string& text) {
        const auto read = thresholds_from_json(text, "file.json");
        EXPECT_FALSE(read.ok()) << text;
        return read.ok() ? std::string() : read.error().message;
    };
    for (const char* text : {"", "[]", "{}", R"({"thresholds": {}})"}) message(text);
    const auto line = [&](const char* text) {
        return message(fmt::format(R"({{"thresholds": [{}]}})", text));
    };
    EXPECT_NE(line("1").find("thresholds[0] is not an object"), std::string::npos);
    EXPECT_NE(line(R"({"min": 1})").find("lacks 'case'"), std::string::npos);
    EXPECT_NE(line(R"({"case": "a"})").find("needs one of"), std::string::npos);
    EXPECT_NE(line(R"({"case": "a", "min": 1, "max": 2})").find("needs one of"), std::string::npos);
    EXPECT_NE(line(R"({"case": "a", "leest": 1})").find("unknown member 'leest'"), std::string::npos);
    EXPECT_NE(line(R"({"case": "a", "min": "1"})").find("'min'"), std::string::npos);
    EXPECT_NE(line(R"({"case": "a", "min": 0})").find("above 0"), std::string::npos);
    EXPECT_NE(line(R"({"case": 1, "min": 1})").find("'case'"), std::string::npos);
    EXPECT_NE(line(R"({"case": "a", "bytes": 1.5, "min": 1})").find("whole number"), std::string::npos);
    EXPECT_NE(line(R"({"case": "a", "min": 1}, {})").find("thresholds[1]"), std::string::npos);
}

TEST(Fits, StarsAndQuestionMarks) {
    EXPECT_TRUE(fits("*", ""));
    EXPECT_TRUE(fits("host_link", "host_link"));
    EXPECT_FALSE(fits("host_link", "host_links"));
    EXPECT_TRUE(fits("gpu:? -> gpu:*", "gpu:1 -> gpu:12"));
    EXPECT_FALSE(fits("gpu:? -> gpu:*", "gpu:10 -> gpu:1"));
    EXPECT_TRUE(fits("a*b*c", "aXbYbZc"));
    EXPECT_FALSE(fits("a*b*c", "aXbYbZ"));
    EXPECT_FALSE(fits("", "a"));
    EXPECT_FALSE(fits(std::string(5000, '*') + "b", std::string(5000, 'a')));
}

TEST(ChooseCases, ByPatternInTheirOrder) {
    const auto named = [](const char* key) { return Case{key, "", nothing_missing, {}}; };
    const std::vector<Case> all = {named("host_link"), named("peer_engine"), named("peer_kernel")};
    EXPECT_EQ(choose_cases(all, {})->size(), 3u);
    const auto chosen = choose_cases(all, {"peer_*", "host_link"});
    ASSERT_TRUE(chosen.ok());
    EXPECT_EQ(chosen->front().key, "host_link");
    const auto none = choose_cases(all, {"host_link", "pear"});
    ASSERT_FALSE(none.ok());
    EXPECT_NE(none.error().message.find("'pear'"), std::string::npos);
}

}  // namespace
}  // namespace sidestep::bench
