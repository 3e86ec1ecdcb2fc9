#include "bench/text.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace sidestep::bench {
namespace {

std::string limit_cell(const Figure& figure) {
    if (figure.limit <= 0) return {};
    return fmt::format("of {} ({})", format_value(figure.limit), figure.limit_source);
}

// Whether the limit is what this peer reached; then its name is there already.
bool is_limit(const Figure& figure, const Peer& peer) {
    return figure.limit_source.size() > peer.name.size() && figure.limit_source.ends_with(peer.name) &&
           figure.limit == peer.samples.median();
}

std::string peers_cell(const Figure& figure) {
    std::string text;
    for (const Peer& peer : figure.peers) {
        if (is_limit(figure, peer)) continue;
        if (!text.empty()) text += "; ";
        text += fmt::format("{}: {}", peer.name, format_value(peer.samples.median()));
        const double ours = figure.measured.median(), theirs = peer.samples.median();
        if (theirs > 0) text += fmt::format(" ({:.1f} % of it)", 100 * ours / theirs);
    }
    return text;
}

std::string verdict_cell(const Figure& figure) {
    std::string text = figure.verified ? "verified" : "";
    if (figure.verdict == Verdict::none) return text;
    if (!text.empty()) text += ", ";
    const char* relation = figure.more_is_better ? "at least" : "at most";
    return text + fmt::format("{}: {} {}", figure.verdict == Verdict::pass ? "pass" : "FAIL", relation,
                              format_value(figure.threshold));
}

std::vector<std::string> row_of(const Figure& figure) {
    const double share = figure.share_of_limit();
    return {
        figure.what,
        figure.bytes > 0 ? format_bytes(figure.bytes) : "",
        fmt::format("{} {}", format_value(figure.measured.median()), figure.unit),
        fmt::format("[{} .. {}]", format_value(figure.measured.min()), format_value(figure.measured.max())),
        share > 0 ? fmt::format("{:.1f} %", 100 * share) : "",
        limit_cell(figure),
        peers_cell(figure),
        verdict_cell(figure)};
}

}  // namespace

std::string format_value(double value) {
    const double size = std::fabs(value);
    if (size >= 1000) return fmt::format("{:.0f}", value);
    if (size >= 100) return fmt::format("{:.1f}", value);
    if (size >= 10) return fmt::format("{:.2f}", value);
    return fmt::format("{:.3f}", value);
}

std::string align(const std::vector<std::vector<std::string>>& rows) {
    std::vector<std::size_t> widths;
    for (const auto& row : rows) {
        widths.resize(std::max(widths.size(), row.size()), 0);
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (const auto& row : rows) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i)
            if (widths[i] > 0) line += fmt::format("  {:<{}}", row[i], widths[i]);
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    }
    return text;
}

std::string head_text(const Report& report) {
    std::string text = fmt::format("machine {}; {}; {}", report.machine, report.processor, report.kernel);
    if (!report.driver.empty()) text += fmt::format("; driver {}", report.driver);
    return text + fmt::format("\nsidestep {}, {}\n", report.version, report.date);
}

std::string case_text(const CaseResult& result) {
    std::string text = fmt::format("{}: {}\n", result.key, result.description);
    if (!result.skipped.empty()) text += fmt::format("  skipped: {}\n", result.skipped);
    if (!result.failed.empty()) text += fmt::format("  failed: {}\n", result.failed);
    std::vector<std::vector<std::string>> rows;
    for (const Figure& figure : result.figures) rows.push_back(row_of(figure));
    text += align(rows);
    for (const std::string& note : result.notes) text += fmt::format("  note: {}\n", note);
    return text;
}

std::string tail_text(const Report& report) {
    std::string text;
    for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
    int passed = 0, failed = 0;
    for (const CaseResult& result : report.cases)
        for (const Figure& figure : result.figures) {
            passed += figure.verdict == Verdict::pass;
            failed += figure.verdict == Verdict::fail;
        }
    if (passed + failed > 0) text += fmt::format("thresholds: {} passed, {} failed\n", passed, failed);
    return text;
}

}  // namespace sidestep::bench
