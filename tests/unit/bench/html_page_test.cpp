// The page as a whole. tests/page opens it in a browser.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "bench/html/text.hpp"
#include "tests/unit/bench/example_reports.hpp"

namespace sidestep::bench {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
        ++found;
    return found;
}

// Whether that word stands where a page has its values: as text, as an attribute, as a coordinate of a path.
bool is_a_value(const std::string& page, const std::string& word) {
    constexpr std::string_view before = ">\"ML ";
    constexpr std::string_view after = "<\"L Z%";
    for (std::size_t at = page.find(word); at != std::string::npos; at = page.find(word, at + 1)) {
        const std::size_t start = at > 0 && page[at - 1] == '-' ? at - 1 : at;
        const std::size_t end = at + word.size();
        if (start == 0 || end == page.size()) continue;
        if (before.find(page[start - 1]) != before.npos && after.find(page[end]) != after.npos) return true;
    }
    return false;
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// The part of a page between a case's head and the next section.
std::string section(const std::string& page, const std::string& id) {
    const std::size_t begin = page.find(fmt::format("<section id=\"{}\"", id));
    if (begin == std::string::npos) return "";
    return page.substr(begin, page.find("</section>", begin) - begin);
}

std::string without_json(const std::string& page) {
    const std::size_t begin = page.find("<script type=\"application/json\"");
    const std::size_t end = page.find("</script>", begin);
    return page.substr(0, begin) + page.substr(end);
}

// What is wrong with the nesting of tags; empty where each is closed in its order. Reads what this page
// writes: no ">" within attributes, and nothing but text in scripts and styles.
std::string unbalanced(const std::string& page) {
    std::vector<std::string> open;
    for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
        if (page[at + 1] == '!') continue;
        const bool closes = page[at + 1] == '/';
        const std::size_t begin = at + (closes ? 2 : 1);
        const std::size_t end = page.find('>', at);
        const std::string name = page.substr(begin, page.find_first_of(" >/", begin) - begin);
        if (closes) {
            if (open.empty() || open.back() != name) return fmt::format("</{}> closes something else", name);
            open.pop_back();
        } else if (name != "meta" && page[end - 1] != '/') {
            open.push_back(name);
            if (name == "script" || name == "style") at = page.find(fmt::format("</{}", name), at) - 1;
        }
    }
    return open.empty() ? "" : fmt::format("open: {}", open.back());
}

TEST(Page, StandsAlone) {
    for (const Report& report : {example_report(), Report{}}) {
        const std::string page = to_html(report);
        for (const char* loads :
             {"http:", "https:", "//cdn", " src=", "@import", "url(", "<link", "<iframe", "<object"})
            EXPECT_FALSE(has(page, loads)) << loads;
        EXPECT_TRUE(has(page, "default-src 'none'"));
        EXPECT_FALSE(has(page, "script-src 'unsafe-inline'"));
    }
}

TEST(Page, TagsAreClosed) {
    EXPECT_EQ(unbalanced(to_html(example_report())), "");
    EXPECT_EQ(unbalanced(to_html(Report{})), "");
    EXPECT_EQ(unbalanced(to_html(hostile_report())), "");
    EXPECT_NE(unbalanced("<p><b></p>"), "");
}

TEST(Page, SaysWhereAndHowTheFiguresWereTaken) {
    Report report = example_report();
    const std::string page = to_html(report);
    for (const std::string& words : {report.machine, report.date, report.command, report.version,
                                     report.processor, report.kernel, report.driver, report.notes[0]})
        EXPECT_TRUE(has(page, words)) << words;
    EXPECT_FALSE(has(page, "The GPUs are emulated"));
    report.emulated = true;
    EXPECT_TRUE(has(to_html(report), "The GPUs are emulated"));
}

TEST(Page, SummaryCountsAndBringsTheLowestFirst) {
    const std::string summary = section(to_html(example_report()), "summary");
    for (const char* words : {">6</b>cases run", ">1</b>skipped", ">1</b>failed", ">11</b>thresholds passed",
                              ">2</b>thresholds missed", ">127</b>figures"})
        EXPECT_TRUE(has(summary, words)) << words;
    // The greatest rate comes before all else, and what was not there last.
    EXPECT_LT(summary.find("</b>GB/s, gpu:"), summary.find("Thresholds missed"));
    EXPECT_LT(summary.find("Cases"), summary.find("this machine has no NVMe drive"));
    EXPECT_TRUE(has(summary, "the other process did not answer in 10 s (peer at pid 4711)"));
    const std::string low = summary.substr(summary.find("Below 90 %"));
    EXPECT_LT(low.find("gpu:3 -&gt; gpu:1, kernel"), low.find("gpu:1 -&gt; gpu:3, copy engine"));
    // A small copy is far below the link's rate, and no news.
    EXPECT_FALSE(has(low.substr(0, low.find("Cases")), "4 KiB</small>"));
}

TEST(Page, MatricesHaveTheirCells) {
    const std::string peers = section(to_html(example_report()), "case-2");
    EXPECT_EQ(count(peers, "<table class=\"heat\">"), 2U);
    EXPECT_EQ(count(peers, "<td class=\"h"), 24U + 8U);  // 12 pairs twice, and the holes between
    EXPECT_EQ(count(peers, "<td class=\"hole\">"), 8U);
    EXPECT_EQ(count(peers, "<th scope=\"col\">gpu:3</th>"), 2U);
    // 61 % of the limit stands far from the rest.
    EXPECT_TRUE(has(peers, "<td class=\"h1\" title=\"gpu:3 -&gt; gpu:1, copy engine"));
    EXPECT_TRUE(has(peers, "<td class=\"h6\" title=\"gpu:0 -&gt; gpu:1, copy engine"));
    const std::string latency = section(to_html(example_report()), "case-5");
    EXPECT_EQ(count(latency, "<td class=\"q"), 16U);
    EXPECT_TRUE(has(latency, "no limit is known"));
}

TEST(Page, CurvesHaveTheirLimitsBandsAndPeers) {
    const std::string sizes = section(to_html(example_report()), "case-3");
    EXPECT_EQ(count(sizes, "<svg class=\"chart\""), 3U);
    EXPECT_EQ(count(sizes, "class=\"limit\" d="), 3U);
    EXPECT_EQ(count(sizes, "class=\"band c0\""), 3U);
    EXPECT_EQ(count(sizes, "<circle class=\"dot c0\" cx"), 3U * 11 + 1);  // one more in the legend
    EXPECT_EQ(count(sizes, "<circle class=\"ring c1\" cx"), 3U * 11 + 1);
    EXPECT_EQ(count(sizes, "<ul class=\"legend\">"), 1U);
    for (const char* words : {">4 KiB</text>", ">4 GiB</text>", ">limit 396</text>", "bare cuMemcpyAsync"})
        EXPECT_TRUE(has(sizes, words)) << words;
    const std::string lanes = section(to_html(example_report()), "case-4");
    EXPECT_EQ(count(lanes, "<svg class=\"chart\""), 1U);
    EXPECT_EQ(count(lanes, "class=\"limit\" d="), 2U);  // one link's, and the sum that two curves share
    for (const char* name : {"1 lane", "2 lanes", "all lanes"})
        EXPECT_TRUE(has(lanes, std::string("</svg>") + name));
}

TEST(Page, TheRestIsATableWithBars) {
    const std::string calls = section(to_html(example_report()), "case-6");
    EXPECT_EQ(count(calls, "<tr><th scope=\"row\">"), 4U);
    EXPECT_EQ(count(calls, "class=\"sharebar\""), 2U);
    EXPECT_TRUE(has(calls, "loop of cuMemcpyPeerAsync <b>0.38"));
    EXPECT_TRUE(has(calls, "at most 909.7"));
}

TEST(Page, EveryFigureIsInTheTableAndInTheJson) {
    const Report report = example_report();
    const std::string page = to_html(report);
    const std::string table = section(page, "figures");
    std::size_t figures = 0;
    for (const CaseResult& result : report.cases) {
        figures += result.figures.size();
        for (const Figure& figure : result.figures)
            EXPECT_TRUE(has(table, fmt::format("<td>{}</td>", html::escape(figure.what)))) << figure.what;
    }
    EXPECT_EQ(count(table, "<tr><td>"), figures);
    const std::size_t begin = page.find(">", page.find("<script type=\"application/json\"")) + 1;
    const auto back =
        Report::from_json(page.substr(begin, page.find("</script>", begin) - begin), "the page");
    ASSERT_TRUE(back.ok()) << back.error().to_string();
    EXPECT_EQ(back->to_json(), report.to_json());
}

TEST(Page, TheMachineIsDrawnInBothThemes) {
    const std::string machine = section(to_html(example_report()), "machine");
    EXPECT_TRUE(has(machine, "class=\"sidestep\""));
    EXPECT_TRUE(has(machine, "nvswitch:0"));
    EXPECT_FALSE(has(machine, "xmlns"));
    EXPECT_FALSE(has(machine, "<?xml"));
    EXPECT_TRUE(has(machine, ":root[data-theme=dark] .sidestep .gpu{"));
    EXPECT_TRUE(has(machine, ":root:not([data-theme=light]) .sidestep .gpu{"));
}

TEST(Page, WithoutATopologyItSaysSo) {
    Report report = example_report();
    report.topology.clear();
    EXPECT_TRUE(has(to_html(report), "The report has no topology to draw"));
    report.topology = "{\"no\": \"<topology>\"}";
    const std::string page = to_html(report);
    EXPECT_TRUE(has(page, "cannot be read"));
    EXPECT_FALSE(has(without_json(page), "<topology>"));
}

TEST(Page, HostileTextStaysText) {
    const std::string page = to_html(hostile_report());
    EXPECT_EQ(count(page, "<script"), 2U);  // the JSON and the page's own
    EXPECT_EQ(count(page, "</script>"), 2U);
    EXPECT_FALSE(has(page, "<img"));
    EXPECT_FALSE(has(page, "alert(1)</script>"));
    EXPECT_EQ(count(page, "</style>"), 2U);  // the page's and the drawing's
    EXPECT_EQ(count(page, "</title></style>"), 0U);
    EXPECT_FALSE(has(page, "]]>"));
    EXPECT_FALSE(has(page, "\x01"));
    EXPECT_FALSE(has(page, "\xff"));
}

TEST(Page, ValuesThatAreNoNumbersAreNamed) {
    const std::string page = without_json(to_html(hostile_report()));
    EXPECT_TRUE(has(page, "no number"));
    EXPECT_TRUE(has(page, "no samples"));
    for (const std::string part : {"nan", "inf"}) EXPECT_FALSE(is_a_value(page, part)) << part;
}

TEST(Page, AnEmptyReportIsAPage) {
    const std::string page = to_html({});
    EXPECT_TRUE(has(page, "The report has no cases"));
    EXPECT_TRUE(has(page, "A machine without a name"));
    EXPECT_TRUE(page.ends_with("</html>\n"));
}

TEST(Page, OneFigureIsAPage) {
    Report report;
    Figure figure;
    figure.what = "memcpy";
    figure.unit = "GB/s";
    figure.measured = {{12.5}};
    report.cases = {{"host", "copies", "", "", {figure}, {}}};
    const std::string page = to_html(report);
    EXPECT_TRUE(has(section(page, "case-1"), "<b>12.5</b> GB/s"));
    EXPECT_FALSE(has(page, "<table class=\"heat\">"));
    EXPECT_FALSE(has(page, "<svg class=\"chart\""));
    EXPECT_FALSE(has(page, "Below 90 %"));
}

TEST(Page, ALargeReportStaysSmall) {
    const std::string page = to_html(large_report());
    EXPECT_EQ(count(page, "<svg class=\"chart\""), 4U * 12);
    EXPECT_LT(page.size(), 2'000'000U);
}

}  // namespace
}  // namespace sidestep::bench
