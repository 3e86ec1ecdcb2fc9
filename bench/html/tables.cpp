// Tables of figures: with bars in a case, and of everything at the end.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/html/parts.hpp"
#include "bench/html/text.hpp"

namespace sidestep::bench::html {

namespace {

// A longer table is folded away until somebody opens it.
constexpr std::size_t rows_shown_open = 40;

std::string limit_cell(const Figure& figure) {
    if (figure.limit == 0) return "";
    std::string text = fmt::format("{}", number(figure.limit));
    if (!figure.limit_source.empty()) text += fmt::format("<small>{}</small>", escape(figure.limit_source));
    return text;
}

std::string median_cell(const Figure& figure) {
    std::string text = fmt::format("<b>{}</b> {}", median_text(figure), escape(figure.unit));
    if (const std::string spread = spread_text(figure.measured); !spread.empty())
        text += fmt::format("<small class=\"s\">{}</small>", spread);
    return text;
}

bool any(const std::vector<const Figure*>& figures, bool (*has)(const Figure&)) {
    return std::any_of(figures.begin(), figures.end(), [&](const Figure* figure) { return has(*figure); });
}

// A column that no row fills is left out.
struct Columns {
    bool size, limit, peers, threshold, path;
};

Columns columns_of(const std::vector<const Figure*>& figures) {
    return {any(figures, [](const Figure& f) { return f.bytes > 0; }),
            any(figures, [](const Figure& f) { return f.limit > 0; }),
            any(figures, [](const Figure& f) { return !f.peers.empty(); }),
            any(figures, [](const Figure& f) { return f.verdict != Verdict::none; }),
            any(figures, [](const Figure& f) { return !f.path.empty(); })};
}

std::string bar_row(const Figure& figure, const Columns& columns) {
    std::string text = fmt::format(
        "<tr><th scope=\"row\">{}{}</th>", escape(figure.what),
        columns.path && !figure.path.empty() ? fmt::format("<small>{}</small>", escape(figure.path)) : "");
    if (columns.size) text += fmt::format("<td class=\"n\">{}</td>", size_text(figure));
    text += fmt::format("<td class=\"n\">{}</td>", median_cell(figure));
    if (columns.limit) text += fmt::format("<td>{}</td><td>{}</td>", share_bar(figure), limit_cell(figure));
    if (columns.peers) text += fmt::format("<td>{}</td>", peer_lines(figure));
    if (columns.threshold) text += fmt::format("<td>{}</td>", verdict_mark(figure));
    return text + "</tr>\n";
}

// A cell that sorts by a number.
std::string sorted_cell(double value, const std::string& words) {
    return fmt::format("<td class=\"n\" data-s=\"{}\">{}</td>",
                       std::isfinite(value) ? fmt::format("{:.6g}", value) : "", words);
}

std::string row_of_all(const std::string& key, const Figure& figure) {
    const double median = figure.measured.empty() ? NAN : figure.measured.median();
    std::string text = fmt::format("<tr><td>{}</td><td>{}</td>", escape(key), escape(figure.what));
    text += sorted_cell(static_cast<double>(figure.bytes), size_text(figure));
    text += sorted_cell(median, median_text(figure));
    text +=
        fmt::format("<td>{}</td><td class=\"n\">{}</td>", escape(figure.unit), spread_text(figure.measured));
    text += sorted_cell(figure.limit > 0 ? figure.limit : NAN, figure.limit > 0 ? number(figure.limit) : "");
    text += has_share(figure) ? sorted_cell(figure.share_of_limit(), percent(figure.share_of_limit()))
                              : sorted_cell(NAN, "");
    text += fmt::format("<td>{}</td><td>{}</td>", peer_lines(figure), verdict_mark(figure));
    return text + fmt::format("<td>{}</td></tr>\n", figure.verified ? "yes" : "");
}

// The report without the spaces that make its file readable.
std::string compact_json(const Report& report) {
    const std::string text = report.to_json();
    const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
    if (json.is_discarded()) return text;
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string share_bar(const Figure& figure) {
    if (!has_share(figure)) return "";
    const double share = figure.share_of_limit();
    return fmt::format(
        "<span class=\"share\"><svg class=\"sharebar\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" "
        "aria-hidden=\"true\"><path class=\"track\" d=\"M0 0h100v8H0z\"/><path class=\"fill {}\" "
        "d=\"M0 0h{}v8H0z\"/></svg>{}</span>",
        share_class(share), coordinate(std::clamp(share, 0.0, 1.0) * 100), percent(share));
}

std::string verdict_mark(const Figure& figure) {
    if (figure.verdict == Verdict::none) return "";
    const bool passed = figure.verdict == Verdict::pass;
    return fmt::format("<span class=\"{}\">{} {}</span>", passed ? "good" : "bad",
                       passed ? "✓" : "✗ missed:", threshold_text(figure));
}

std::string peer_lines(const Figure& figure) {
    std::string text;
    for (const Peer& peer : figure.peers) {
        const std::string median = peer.samples.empty() ? "no samples" : number(peer.samples.median());
        text += fmt::format("<span class=\"peerline\">{} <b>{}</b></span>", escape(peer.name), median);
    }
    return text;
}

std::string bars(const std::vector<const Figure*>& figures) {
    if (figures.empty()) return "";
    const Columns columns = columns_of(figures);
    std::string text = "<div class=\"scroll\"><table class=\"list\"><thead><tr><th>what</th>";
    if (columns.size) text += "<th class=\"n\">size</th>";
    text += "<th class=\"n\">median</th>";
    if (columns.limit) text += "<th>share of the limit</th><th>limit</th>";
    if (columns.peers) text += "<th>peers</th>";
    if (columns.threshold) text += "<th>threshold</th>";
    text += "</tr></thead><tbody>\n";
    for (const Figure* figure : figures) text += bar_row(*figure, columns);
    return text + "</tbody></table></div>\n";
}

std::string all_figures(const Report& report) {
    std::size_t count = 0;
    for (const CaseResult& result : report.cases) count += result.figures.size();
    std::string text = "<section id=\"figures\"><h2>All figures</h2>\n";
    if (count > 0) {
        text += fmt::format(
            "<details{}><summary>{} figures, as a table</summary>"
            "<div class=\"scroll\"><table class=\"list sortable\"><thead><tr><th>case</th><th>what</th>"
            "<th class=\"n\">size</th><th class=\"n\">median</th><th>unit</th><th class=\"n\">least .. "
            "most</th>"
            "<th class=\"n\">limit</th><th "
            "class=\"n\">share</th><th>peers</th><th>threshold</th><th>verified</th>"
            "</tr></thead><tbody>\n",
            count <= rows_shown_open ? " open" : "", count);
        for (const CaseResult& result : report.cases)
            for (const Figure& figure : result.figures) text += row_of_all(result.key, figure);
        text += "</tbody></table></div></details>\n";
    }
    return text +
           fmt::format(
               "<p class=\"tools\" hidden><button type=\"button\" id=\"download\">Download as JSON</button>"
               "<button type=\"button\" id=\"copy\">Copy JSON</button></p>\n"
               "<script type=\"application/json\" id=\"report\">{}</script></section>\n",
               json_for_script(compact_json(report)));
}

}  // namespace sidestep::bench::html
