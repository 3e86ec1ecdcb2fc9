#include "bench/text.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace sidestep::bench {
namespace {

// Pairs of three GPUs.
constexpr std::size_t fewest_of_a_matrix = 6;

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

// What is said of a figure beside the pair it is of: ", copy engine". Nothing where it is of no pair, or is worth a
// line of its own.
std::optional<std::string> said_of_pair(const Figure& figure) {
    const std::string pair = figure.from + " -> " + figure.to;
    if (figure.from.empty() || figure.to.empty() || figure.verdict == Verdict::fail) return std::nullopt;
    if (!figure.what.starts_with(pair)) return std::nullopt;
    return fmt::format("{}|{}|{}|{}", figure.what.substr(pair.size()), figure.unit, figure.bytes,
                       figure.verified);
}

// "98.9 to 99.7 %", of some share of each figure above 0.
template <typename Share>
std::string range_of(const std::vector<const Figure*>& figures, Share share) {
    double low = 0, high = 0;
    for (const Figure* figure : figures) {
        const double one = share(*figure);
        if (one <= 0) continue;
        low = low == 0 ? one : std::min(low, one);
        high = std::max(high, one);
    }
    return high == 0 ? "" : fmt::format("{:.1f} to {:.1f} %", 100 * low, 100 * high);
}

std::string summary_of(const std::vector<const Figure*>& figures) {
    std::string text;
    if (const std::string range = range_of(figures, [](const Figure& f) { return f.share_of_limit(); });
        !range.empty())
        text += fmt::format("  {} of the limit ({})\n", range, figures.front()->limit_source);
    for (const Peer& peer : figures.front()->peers) {
        const std::string range = range_of(figures, [&peer](const Figure& figure) {
            for (const Peer& other : figure.peers)
                if (other.name == peer.name && other.samples.median() > 0)
                    return figure.measured.median() / other.samples.median();
            return 0.0;
        });
        if (!range.empty()) text += fmt::format("  {} of {}\n", range, peer.name);
    }
    return text;
}

// Many pairs, a line for each place that bytes come from.
std::string matrix_text(const std::vector<const Figure*>& figures) {
    const auto before = [](const std::string& a, const std::string& b) {
        return std::pair(a.size(), a) < std::pair(b.size(), b);
    };
    std::map<std::string, std::map<std::string, std::string>, decltype(before)> cells(before);
    std::set<std::string, decltype(before)> heads(before);
    for (const Figure* figure : figures) {
        cells[figure->from][figure->to] = format_value(figure->measured.median());
        heads.insert(figure->to);
    }
    std::vector<std::vector<std::string>> rows(1, {"from \\ to"});
    rows.front().insert(rows.front().end(), heads.begin(), heads.end());
    for (auto& [from, row] : cells) {
        rows.push_back({from});
        for (const std::string& to : heads) rows.back().push_back(row.count(to) != 0 ? row[to] : "-");
    }
    const Figure& first = *figures.front();
    std::string words = first.what.substr(first.from.size() + 4 + first.to.size());
    if (words.starts_with(", ")) words = words.substr(2) + ", ";
    if (first.bytes > 0) words += format_bytes(first.bytes) + ", ";
    return fmt::format("  {}{}, medians{}\n", words, first.unit, first.verified ? ", verified" : "") +
           align(rows) + summary_of(figures);
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
    std::map<std::string, std::vector<const Figure*>> pairs;
    for (const Figure& figure : result.figures)
        if (const auto key = said_of_pair(figure)) pairs[*key].push_back(&figure);
    std::vector<std::vector<std::string>> rows;
    for (const Figure& figure : result.figures) {
        const auto key = said_of_pair(figure);
        const bool many = key && pairs[*key].size() >= fewest_of_a_matrix;
        if (!many) rows.push_back(row_of(figure));
        if (many && pairs[*key].front() == &figure) text += matrix_text(pairs[*key]);
    }
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
    failed += report.idle_thresholds;
    if (passed + failed > 0) text += fmt::format("thresholds: {} passed, {} failed\n", passed, failed);
    return text;
}

}  // namespace sidestep::bench
