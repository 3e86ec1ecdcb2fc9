// Matrices of places as heat maps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/html/parts.hpp"
#include "bench/html/text.hpp"

namespace sidestep::bench::html {

namespace {

constexpr int range_steps = 7;  // classes q0 to q6

// The lower ends of the classes h1 to h6, as shares of the limit.
constexpr double share_steps[] = {0.5, 0.7, 0.8, 0.9, 0.95, 0.98};

// The medians of a matrix: what colours stand for where no limit is known.
struct Range {
    double min = 0, max = 0;
    bool empty = true;
};

Range range_of(const Matrix& matrix) {
    Range range;
    for (const auto& cell : matrix.cells) {
        if (cell.second->measured.empty()) continue;
        const double median = cell.second->measured.median();
        if (!std::isfinite(median)) continue;
        range.min = range.empty ? median : std::min(range.min, median);
        range.max = range.empty ? median : std::max(range.max, median);
        range.empty = false;
    }
    // Noise of a few percent is not spread over all colours.
    range.min = std::min(range.min, range.max - 0.1 * std::abs(range.max));
    return range;
}

std::string range_class(double median, const Range& range) {
    if (!std::isfinite(median) || range.empty) return "none";
    const double width = range.max - range.min;
    const double part = width > 0 ? (median - range.min) / width : 1;
    const int step = std::clamp(static_cast<int>(part * range_steps), 0, range_steps - 1);
    return fmt::format("q{}", step);
}

bool has_shares(const Matrix& matrix) {
    return std::any_of(matrix.cells.begin(), matrix.cells.end(),
                       [](const auto& cell) { return has_share(*cell.second); });
}

std::string cell(const Figure& figure, bool shares, const Range& range) {
    const bool has_value = !figure.measured.empty();
    const std::string colour = !has_value          ? "none"
                               : has_share(figure) ? share_class(figure.share_of_limit())
                               : shares            ? "none"
                                                   : range_class(figure.measured.median(), range);
    std::string words = escape(median_text(figure));
    if (has_share(figure)) words += fmt::format("<small>{}</small>", percent(figure.share_of_limit()));
    const char* failed = figure.verdict == Verdict::fail ? " failed" : "";
    return fmt::format("<td class=\"{}{}\" title=\"{}\">{}</td>", colour, failed, escape(describe(figure)),
                       words);
}

std::string share_legend() {
    std::string text = "<p class=\"scale\">share of the limit: ";
    text += "<span><i class=\"h0\"></i>below 50 %</span>";
    for (int i = 0; i < 6; ++i)
        text += fmt::format("<span><i class=\"h{}\"></i>{}{:.0f} %{}</span>", i + 1, i == 0 ? "from " : "",
                            share_steps[i] * 100, i < 5 ? "" : " and above");
    return text + "</p>";
}

std::string range_legend(const Range& range, const std::string& unit) {
    if (range.empty) return "";
    std::string text = fmt::format("<p class=\"scale\">no limit is known; {} <span>", number(range.min));
    for (int i = 0; i < range_steps; ++i) text += fmt::format("<i class=\"q{}\"></i>", i);
    return text + fmt::format("</span> {} {}</p>", number(range.max), escape(unit));
}

std::string heat_map(const Matrix& matrix) {
    std::string title = matrix.words.empty() ? matrix.ends : matrix.words;
    if (matrix.bytes > 0) title.append(title.empty() ? "" : ", ").append(format_bytes(matrix.bytes));
    title.append(title.empty() ? "" : ", ").append(matrix.unit);
    const bool shares = has_shares(matrix);
    const Range range = range_of(matrix);
    std::string text = fmt::format(
        "<figure class=\"matrix\"><figcaption>{}</figcaption><div class=\"scroll\"><table "
        "class=\"heat\">"
        "<thead><tr><th class=\"corner\">from \\ to</th>",
        escape(title));
    for (const std::string& to : matrix.to) text += fmt::format("<th scope=\"col\">{}</th>", escape(to));
    text += "</tr></thead><tbody>\n";
    for (const std::string& from : matrix.from) {
        text += fmt::format("<tr><th scope=\"row\">{}</th>", escape(from));
        for (const std::string& to : matrix.to) {
            const auto at = matrix.cells.find({from, to});
            text += at == matrix.cells.end() ? "<td class=\"hole\"></td>" : cell(*at->second, shares, range);
        }
        text += "</tr>\n";
    }
    text += "</tbody></table></div>";
    return text + (shares ? "" : range_legend(range, matrix.unit)) + "</figure>\n";
}

}  // namespace

std::string share_class(double share) {
    const auto above = std::upper_bound(std::begin(share_steps), std::end(share_steps), share);
    return fmt::format("h{}", above - std::begin(share_steps));
}

std::string heat_maps(const std::vector<const Matrix*>& matrices) {
    if (matrices.empty()) return "";
    std::string text = "<div class=\"readable\"><div class=\"matrices\">\n";
    bool shares = false;
    for (const Matrix* matrix : matrices) {
        text += heat_map(*matrix);
        shares = shares || has_shares(*matrix);
    }
    text += "</div>\n";
    if (shares) text += share_legend();
    return text + "<p class=\"readout\" aria-live=\"polite\"></p></div>\n";
}

}  // namespace sidestep::bench::html
