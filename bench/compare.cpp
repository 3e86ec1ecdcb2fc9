#include "bench/compare.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/text.hpp"

namespace sidestep::bench {
namespace {

constexpr std::size_t fewest_samples = 5;
constexpr double min_percent = 2;
constexpr double deviations = 3;
constexpr double deviation_of_mad = 1.4826;  // of a normal distribution

// The value below which a share of the samples lies, between neighbours in proportion.
double quantile(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    const double at = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (values[above] - values[below]) * (at - static_cast<double>(below));
}

double deviation(const Samples& samples) {
    const double median = samples.median();
    Samples distances;
    for (const double value : samples.values) distances.values.push_back(std::fabs(value - median));
    return deviation_of_mad * distances.median();
}

bool middles_overlap(const Samples& a, const Samples& b) {
    return quantile(a.values, 0.25) <= quantile(b.values, 0.75) &&
           quantile(b.values, 0.25) <= quantile(a.values, 0.75);
}

FigureChange change_of(const std::string& key, const Figure& before, const Figure& after) {
    FigureChange change{
        key, before.what, before.bytes, before.unit, before.measured.median(), after.measured.median()};
    const double scale = std::fabs(change.before);
    const double difference = change.after - change.before;
    if (scale > 0) change.percent = 100 * difference / scale;
    const double noise = deviations * std::hypot(deviation(before.measured), deviation(after.measured));
    change.noise_percent = std::max(min_percent, scale > 0 ? 100 * noise / scale : 0);
    if (std::fabs(difference) <= scale * change.noise_percent / 100) return change;
    if (std::min(before.measured.values.size(), after.measured.values.size()) < fewest_samples) {
        change.change = Change::unclear;
        return change;
    }
    if (middles_overlap(before.measured, after.measured)) return change;
    change.change = (difference > 0) == before.more_is_better ? Change::better : Change::worse;
    return change;
}

// What names a figure; the number tells figures apart that nothing else does.
using Name = std::tuple<std::string, std::string, Bytes, std::string, int>;

std::vector<std::pair<Name, const Figure*>> figures_of(const Report& report) {
    std::map<Name, int> seen;
    std::vector<std::pair<Name, const Figure*>> list;
    for (const CaseResult& result : report.cases)
        for (const Figure& figure : result.figures) {
            Name name{result.key, figure.what, figure.bytes, figure.unit, 0};
            std::get<int>(name) = seen[name]++;
            list.emplace_back(std::move(name), &figure);
        }
    return list;
}

std::string words(const Name& name) {
    const auto& [key, what, bytes, unit, number] = name;
    return bytes > 0 ? fmt::format("{}: {}, {}", key, what, format_bytes(bytes))
                     : fmt::format("{}: {}", key, what);
}

void note_machines(const Report& before, const Report& after, Comparison& out) {
    const auto differ = [&out](const char* what, const std::string& a, const std::string& b) {
        if (a != b)
            out.notes.push_back(fmt::format("not the same {}: {} before, {} after", what,
                                            a.empty() ? "none" : a, b.empty() ? "none" : b));
    };
    differ("machine", before.machine, after.machine);
    differ("processor", before.processor, after.processor);
    differ("kernel", before.kernel, after.kernel);
    differ("driver", before.driver, after.driver);
    differ("version", before.version, after.version);
    if (before.machine == after.machine && before.topology != after.topology)
        out.notes.push_back("the devices or links of the machine differ; sidestep topo diff says how");
}

std::vector<std::string> new_failures(const Report& before, const Report& after) {
    std::vector<std::string> failures;
    for (const CaseResult& now : after.cases) {
        const bool known = std::ranges::any_of(before.cases, [&](const CaseResult& then) {
            return then.key == now.key && !then.failed.empty();
        });
        if (!now.failed.empty() && !known) failures.push_back(fmt::format("{}: {}", now.key, now.failed));
    }
    return failures;
}

const char* word_of(Change change) {
    switch (change) {
        case Change::same:
            return "same";
        case Change::better:
            return "better";
        case Change::worse:
            return "worse";
        case Change::unclear:
            break;
    }
    return "unclear";
}

}  // namespace

Comparison compare(const Report& before, const Report& after) {
    Comparison out;
    note_machines(before, after, out);
    out.failed_after = new_failures(before, after);
    const auto old_figures = figures_of(before);
    const auto new_list = figures_of(after);
    std::map<Name, const Figure*> new_figures(new_list.begin(), new_list.end());
    for (const auto& [name, figure] : old_figures) {
        const auto found = new_figures.find(name);
        if (found == new_figures.end()) {
            out.only_before.push_back(words(name));
        } else if (figure->measured.empty() || found->second->measured.empty()) {
            out.notes.push_back(fmt::format("{} has no samples in one of the reports", words(name)));
        } else {
            out.figures.push_back(change_of(std::get<0>(name), *figure, *found->second));
        }
        if (found != new_figures.end()) new_figures.erase(found);
    }
    for (const auto& [name, figure] : new_list)
        if (new_figures.count(name) > 0) out.only_after.push_back(words(name));
    return out;
}

int Comparison::count(Change change) const {
    return static_cast<int>(
        std::count_if(figures.begin(), figures.end(),
                      [change](const FigureChange& figure) { return figure.change == change; }));
}

std::string Comparison::to_text(bool everything) const {
    std::vector<std::vector<std::string>> rows;
    for (const FigureChange& figure : figures) {
        if (figure.change == Change::same && !everything) continue;
        rows.push_back(
            {word_of(figure.change), fmt::format("{}: {}", figure.key, figure.what),
             figure.bytes > 0 ? format_bytes(figure.bytes) : "",
             fmt::format("{} -> {} {}", format_value(figure.before), format_value(figure.after), figure.unit),
             fmt::format("{:+.1f} %", figure.percent), fmt::format("noise {:.1f} %", figure.noise_percent)});
    }
    std::string text;
    for (const std::string& note : notes) text += fmt::format("note: {}\n", note);
    text += align(rows);
    for (const std::string& name : only_before) text += fmt::format("  only before  {}\n", name);
    for (const std::string& name : only_after) text += fmt::format("  only after   {}\n", name);
    for (const std::string& failure : failed_after) text += fmt::format("  failed after {}\n", failure);
    return text +
           fmt::format(
               "{} figures in both: {} better, {} worse, {} within noise, {} unclear (too few samples)\n",
               figures.size(), count(Change::better), count(Change::worse), count(Change::same),
               count(Change::unclear));
}

std::string Comparison::to_json() const {
    nlohmann::ordered_json json = {{"format", "sidestep-bench-comparison"},
                                   {"format_version", 1},
                                   {"better", count(Change::better)},
                                   {"worse", count(Change::worse)},
                                   {"same", count(Change::same)},
                                   {"unclear", count(Change::unclear)},
                                   {"figures", nlohmann::ordered_json::array()},
                                   {"only_before", only_before},
                                   {"only_after", only_after},
                                   {"failed_after", failed_after},
                                   {"notes", notes}};
    for (const FigureChange& figure : figures)
        json["figures"].push_back({{"case", figure.key},
                                   {"what", figure.what},
                                   {"bytes", figure.bytes},
                                   {"unit", figure.unit},
                                   {"before", figure.before},
                                   {"after", figure.after},
                                   {"percent", figure.percent},
                                   {"noise_percent", figure.noise_percent},
                                   {"change", word_of(figure.change)}});
    return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sidestep::bench
