// The head of the page, and the summary below it.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "bench/html/parts.hpp"
#include "bench/html/text.hpp"

namespace sidestep::bench::html {

namespace {

constexpr double low_share = 0.9;
constexpr std::size_t low_shown = 12;
constexpr std::size_t rates_shown = 4;

struct Counts {
    std::size_t run = 0, skipped = 0, failed = 0, figures = 0, verified = 0, passed = 0, missed = 0;
};

Counts count(const Report& report) {
    Counts counts;
    for (const CaseResult& result : report.cases) {
        ++(!result.failed.empty() ? counts.failed : !result.skipped.empty() ? counts.skipped : counts.run);
        counts.figures += result.figures.size();
        for (const Figure& figure : result.figures) {
            counts.verified += figure.verified ? 1 : 0;
            counts.passed += figure.verdict == Verdict::pass ? 1 : 0;
            counts.missed += figure.verdict == Verdict::fail ? 1 : 0;
        }
    }
    return counts;
}

std::string tile(std::size_t value, const char* words, const char* colour = "") {
    return fmt::format("<li><b class=\"{}\">{}</b>{}</li>", value > 0 ? colour : "", value, words);
}

std::string tiles(const Counts& counts) {
    std::string text = "<ul class=\"tiles\">";
    text += tile(counts.run, counts.run == 1 ? "case run" : "cases run");
    text += tile(counts.skipped, "skipped");
    text += tile(counts.failed, "failed", "bad");
    text += tile(counts.passed, counts.passed == 1 ? "threshold passed" : "thresholds passed", "good");
    text += tile(counts.missed, counts.missed == 1 ? "threshold missed" : "thresholds missed", "bad");
    text += tile(counts.figures, counts.figures == 1 ? "figure" : "figures");
    text += tile(counts.verified, "with bytes verified");
    return text + "</ul>\n";
}

// "gpu" of "gpu:3", "node1/gpu" of "node1/gpu:3".
std::string kind_beside_node(const std::string& place) {
    return place.substr(0, place.find(':'));
}

// What people come for: the greatest rate between each two kinds of places.
std::string best_rates(const Report& report) {
    std::map<std::pair<std::string, std::string>, const Figure*> best;
    for (const CaseResult& result : report.cases)
        for (const Figure& figure : result.figures) {
            // One way: "gpu:0 <-> gpu:1" is the sum of both.
            const bool one_way = figure.what.starts_with(figure.from + " -> " + figure.to);
            if (figure.unit != "GB/s" || figure.from.empty() || figure.to.empty() || !one_way) continue;
            const Figure*& known = best[{kind_beside_node(figure.from), kind_beside_node(figure.to)}];
            if (known == nullptr || figure.measured.median() > known->measured.median()) known = &figure;
        }
    std::vector<const Figure*> rates;
    for (const auto& [kinds, figure] : best) rates.push_back(figure);
    std::stable_sort(rates.begin(), rates.end(), [](const Figure* a, const Figure* b) {
        return a->measured.median() > b->measured.median();
    });
    rates.resize(std::min(rates.size(), rates_shown));
    std::string text;
    for (const Figure* figure : rates)
        text += fmt::format("<li><b>{}</b>GB/s, {}</li>", median_text(*figure), escape(figure->what));
    return text.empty() ? "" : fmt::format("<ul class=\"tiles\">{}</ul>\n", text);
}

struct Low {
    std::size_t number;  // of the case
    const CaseResult* result;
    const Figure* figure;
};

// Of a curve over size the greatest size counts: small copies never fill a link.
std::vector<const Figure*> greatest_sizes(const CaseResult& result) {
    std::map<std::tuple<std::string, std::string, std::string, std::string>, const Figure*> found;
    for (const Figure& figure : result.figures) {
        const Figure*& kept = found[{figure.what, figure.unit, figure.from, figure.to}];
        if (kept == nullptr || figure.bytes >= kept->bytes) kept = &figure;
    }
    std::vector<const Figure*> list;
    for (const Figure& figure : result.figures)
        if (found[{figure.what, figure.unit, figure.from, figure.to}] == &figure) list.push_back(&figure);
    return list;
}

std::vector<Low> below_limit(const Report& report) {
    std::vector<Low> low;
    for (std::size_t i = 0; i < report.cases.size(); ++i)
        for (const Figure* figure : greatest_sizes(report.cases[i]))
            if (has_share(*figure) && figure->share_of_limit() < low_share)
                low.push_back({i, &report.cases[i], figure});
    std::stable_sort(low.begin(), low.end(), [](const Low& a, const Low& b) {
        return a.figure->share_of_limit() < b.figure->share_of_limit();
    });
    return low;
}

std::string figure_lines(const std::vector<Low>& figures, std::size_t shown) {
    std::string text = "<div class=\"scroll\"><table class=\"list\"><tbody>\n";
    for (std::size_t i = 0; i < std::min(figures.size(), shown); ++i) {
        const Figure& figure = *figures[i].figure;
        const std::string size = size_text(figure);
        text += fmt::format(
            "<tr><td><a href=\"#{}\">{}</a></td><th scope=\"row\">{}{}</th><td class=\"n\"><b>{}</b> "
            "{}</td><td>{}</td>"
            "<td>{}</td><td>{}</td></tr>\n",
            anchor(figures[i].number), escape(figures[i].result->key), escape(figure.what),
            size.empty() ? "" : fmt::format("<small>{}</small>", size), median_text(figure),
            escape(figure.unit), share_bar(figure),
            figure.limit > 0
                ? fmt::format("of {}<small>{}</small>", number(figure.limit), escape(figure.limit_source))
                : "",
            verdict_mark(figure));
    }
    text += "</tbody></table></div>\n";
    if (figures.size() > shown)
        text += fmt::format("<p class=\"note\">{} more are in the table of all figures.</p>\n",
                            figures.size() - shown);
    return text;
}

std::string missed_thresholds(const Report& report) {
    std::vector<Low> missed;
    for (std::size_t i = 0; i < report.cases.size(); ++i)
        for (const Figure& figure : report.cases[i].figures)
            if (figure.verdict == Verdict::fail) missed.push_back({i, &report.cases[i], &figure});
    return missed.empty() ? ""
                          : fmt::format("<h3>Thresholds missed</h3>\n{}", figure_lines(missed, low_shown));
}

std::string low_figures(const Report& report) {
    bool any_limit = false;
    for (const CaseResult& result : report.cases)
        for (const Figure& figure : result.figures) any_limit = any_limit || has_share(figure);
    if (!any_limit) return "";
    const std::vector<Low> low = below_limit(report);
    std::string text = "<h3>Below 90 % of their limit</h3>\n";
    if (low.empty())
        return text + "<p class=\"note\">None: every figure with a limit reaches 90 % of it.</p>\n";
    text += "<p class=\"note\">Of figures taken over several sizes the greatest size counts.</p>\n";
    return text + figure_lines(low, low_shown);
}

std::string state_of(const CaseResult& result) {
    if (!result.failed.empty())
        return fmt::format("<span class=\"bad\">failed:</span> {}", escape(result.failed));
    if (!result.skipped.empty())
        return fmt::format("<span class=\"soft\">skipped:</span> {}", escape(result.skipped));
    return fmt::format("{} {}", result.figures.size(), result.figures.size() == 1 ? "figure" : "figures");
}

std::string lowest_share(const CaseResult& result) {
    const Figure* lowest = nullptr;
    for (const Figure* figure : greatest_sizes(result)) {
        if (!has_share(*figure)) continue;
        if (lowest == nullptr || figure->share_of_limit() < lowest->share_of_limit()) lowest = figure;
    }
    return lowest == nullptr ? "" : share_bar(*lowest);
}

std::string case_table(const Report& report) {
    if (report.cases.empty()) return "<p class=\"note\">The report has no cases.</p>\n";
    std::string text =
        "<h3>Cases</h3>\n<div class=\"scroll\"><table class=\"list "
        "cases\"><thead><tr><th>case</th><th>measures</th><th>result</th>"
        "<th>lowest share of a limit</th></tr></thead><tbody>\n";
    for (std::size_t i = 0; i < report.cases.size(); ++i) {
        const CaseResult& result = report.cases[i];
        const std::string name = has_section(result)
                                     ? fmt::format("<a href=\"#{}\">{}</a>", anchor(i), escape(result.key))
                                     : escape(result.key);
        text += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>\n", name,
                            escape(result.description), state_of(result), lowest_share(result));
    }
    return text + "</tbody></table></div>\n";
}

std::string fact(const char* name, const std::string& value, const char* colour = "") {
    if (value.empty()) return "";
    return fmt::format("<div><dt>{}</dt><dd class=\"{}\">{}</dd></div>", name, colour, escape(value));
}

}  // namespace

std::string anchor(std::size_t number) {
    return fmt::format("case-{}", number + 1);
}

std::string header(const Report& report) {
    std::string text = fmt::format(
        "<header><p class=\"over\">sidestep bench</p><h1>{}</h1>"
        "<button type=\"button\" id=\"theme\" hidden>Theme: as the system</button>\n<dl class=\"facts\">",
        report.machine.empty() ? "A machine without a name" : escape(report.machine));
    text += fact("processor", report.processor);
    text += fact("kernel", report.kernel);
    text += fact("driver", report.driver);
    text += fact("date", report.date);
    text += fact("sidestep", report.version);
    text += fact("command", report.command, "code");
    text += "</dl>\n";
    if (report.emulated)
        text += "<p class=\"caution\">The GPUs are emulated: every rate here is one of host memory.</p>\n";
    return text + "</header>\n";
}

std::string summary(const Report& report) {
    std::string text = fmt::format("<section id=\"summary\"><h2>Summary</h2>\n{}", best_rates(report));
    text += missed_thresholds(report);
    text += tiles(count(report));
    text += low_figures(report);
    text += case_table(report);
    for (const std::string& note : report.notes)
        text += fmt::format("<p class=\"note\">{}</p>\n", escape(note));
    return text + "</section>\n";
}

}  // namespace sidestep::bench::html
