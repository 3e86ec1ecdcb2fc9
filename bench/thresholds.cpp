#include "bench/thresholds.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/try.hpp"
#include "bench/run.hpp"
#include "bench/text_file.hpp"

namespace sidestep::bench {
namespace {

using Json = nlohmann::json;
constexpr std::size_t max_threshold_bytes = std::size_t{1} << 20;

const std::pair<const char*, Threshold::Kind> kinds[] = {
    {"min", Threshold::Kind::min}, {"max", Threshold::Kind::max}, {"min_share", Threshold::Kind::min_share}};

// What is wrong with a line, or empty.
std::string read_line(const Json& line, Threshold& out) {
    if (!line.is_object()) return "is not an object";
    int limits = 0;
    for (const auto& [name, value] : line.items()) {
        const auto* kind =
            std::find_if(std::begin(kinds), std::end(kinds), [&](const auto& k) { return k.first == name; });
        if (kind != std::end(kinds)) {
            if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0)
                return fmt::format("has a '{}' that is not a number above 0", name);
            out.kind = kind->second;
            out.value = value.get<double>();
            ++limits;
        } else if (name == "case" || name == "figure") {
            if (!value.is_string()) return fmt::format("has a '{}' that is not a text", name);
            (name == "case" ? out.case_pattern : out.figure_pattern) = value.get<std::string>();
        } else if (name == "bytes") {
            if (!value.is_number_unsigned()) return "has 'bytes' that are not a whole number";
            out.bytes = value.get<Bytes>();
        } else if (name != "comment") {
            return fmt::format("has an unknown member '{}'", name);
        }
    }
    if (out.case_pattern.empty()) return "lacks 'case'";
    if (limits != 1) return "needs one of 'min', 'max' and 'min_share'";
    return {};
}

bool applies(const Threshold& threshold, const CaseResult& result, const Figure& figure) {
    return fits(threshold.case_pattern, result.key) && fits(threshold.figure_pattern, figure.what) &&
           (threshold.bytes == 0 || threshold.bytes == figure.bytes);
}

// The median that a figure has to reach, in its unit; 0 where a share of an unknown limit is asked for.
double bound(const Threshold& threshold, const Figure& figure) {
    if (threshold.kind != Threshold::Kind::min_share) return threshold.value;
    return figure.more_is_better ? figure.limit * threshold.value : figure.limit / threshold.value;
}

// Whether a line's kind goes with the figure: "max" of a rate would be met by a slow link.
bool sensible(const Threshold& threshold, const Figure& figure) {
    return threshold.kind == Threshold::Kind::min_share ||
           (threshold.kind == Threshold::Kind::min) == figure.more_is_better;
}

// False where the line cannot say anything of the figure.
bool judge_figure(Report& report, const CaseResult& result, Figure& figure, const Threshold& threshold) {
    const auto note = [&](const char* why) {
        report.notes.push_back(fmt::format("threshold for {}, {}: {}", result.key, figure.what, why));
    };
    if (threshold.kind == Threshold::Kind::min_share && !(figure.limit > 0)) {
        note("no limit is known, so its share cannot be judged");
        return false;
    }
    figure.threshold = bound(threshold, figure);
    figure.verdict = Verdict::fail;
    if (!sensible(threshold, figure)) {
        note(figure.more_is_better ? "more is better, so it needs 'min'"
                                   : "less is better, so it needs 'max'");
        return true;
    }
    const double median = figure.measured.median();
    const bool met = figure.more_is_better ? median >= figure.threshold : median <= figure.threshold;
    if (met) figure.verdict = Verdict::pass;
    return true;
}

}  // namespace

Result<std::vector<Threshold>> thresholds_from_json(const std::string& text, const std::string& where) {
    const auto wrong = [&where](std::string what) {
        return Error{ErrorCode::invalid_argument, std::move(what), where, "docs/bench.md describes the file"};
    };
    const Json json = Json::parse(text, nullptr, false);
    if (json.is_discarded()) return wrong("the thresholds are no JSON");
    if (!json.is_object() || !json.contains("thresholds") || !json["thresholds"].is_array())
        return wrong("'thresholds' is not a list");
    std::vector<Threshold> thresholds;
    for (const Json& line : json["thresholds"]) {
        Threshold threshold{.figure_pattern = "*"};
        const std::string what = read_line(line, threshold);
        if (!what.empty()) return wrong(fmt::format("thresholds[{}] {}", thresholds.size(), what));
        thresholds.push_back(std::move(threshold));
    }
    return thresholds;
}

Result<std::vector<Threshold>> load_thresholds(const std::string& path) {
    SIDESTEP_TRY(auto text, read_text(path, max_threshold_bytes));
    return thresholds_from_json(text, path);
}

int judge(Report& report, const std::vector<Threshold>& thresholds) {
    int failed = 0;
    std::vector<bool> used(thresholds.size(), false);
    for (CaseResult& result : report.cases)
        for (Figure& figure : result.figures) {
            for (std::size_t i = 0; i < thresholds.size(); ++i) {
                if (!applies(thresholds[i], result, figure)) continue;
                if (judge_figure(report, result, figure, thresholds[i])) used[i] = true;
                break;
            }
            failed += figure.verdict == Verdict::fail;
        }
    for (std::size_t i = 0; i < thresholds.size(); ++i) {
        if (used[i]) continue;
        report.notes.push_back(fmt::format("thresholds[{}] ({}, {}) judges no figure of this run", i,
                                           thresholds[i].case_pattern, thresholds[i].figure_pattern));
        ++report.idle_thresholds;
    }
    return failed + report.idle_thresholds;
}

}  // namespace sidestep::bench
