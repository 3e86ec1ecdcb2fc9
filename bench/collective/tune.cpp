#include "bench/collective/tune.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/text.hpp"

namespace sidestep::bench::collective {
namespace {

constexpr Bytes everything = Bytes{1} << 40;
constexpr Bytes nothing = 1;  // 0 would mean: by price
// Packets are read while others come in; a price takes that into account so (src/collective/prices.cpp).
constexpr double polling = 0.5;

using Sizes = std::map<Bytes, double>;

// What competes at a size: columns of the table.
constexpr std::array<const char*, 7> columns = {tuned_algorithms[0], lamport_algorithm,   tuned_algorithms[1],
                                                tuned_algorithms[2], tuned_algorithms[3], pushed_algorithm,
                                                ring_algorithm};
// Those of large sizes, among which the price decides.
constexpr std::array<const char*, 3> large = {tuned_algorithms[3], pushed_algorithm, ring_algorithm};

std::set<Bytes> sizes_of(const TuneTimes& times) {
    std::set<Bytes> sizes;
    for (const auto& [algorithm, of] : times)
        for (const auto& [bytes, us] : of) sizes.insert(bytes);
    return sizes;
}

const double* time_of(const TuneTimes& times, const char* algorithm, Bytes bytes) {
    const auto found = times.find(algorithm);
    if (found == times.end()) return nullptr;
    const auto at = found->second.find(bytes);
    return at == found->second.end() ? nullptr : &at->second;
}

// Of those; null where none was measured.
template <std::size_t count>
const double* best_of(const TuneTimes& times, const std::array<const char*, count>& algorithms, Bytes bytes) {
    const double* best = nullptr;
    for (const char* algorithm : algorithms)
        if (const double* us = time_of(times, algorithm, bytes); us && (!best || *us < *best)) best = us;
    return best;
}

// The sizes up to which all algorithms but those of large ones are taken.
using Ends = std::array<Bytes, std::size(tuned_algorithms) - 1>;

// What choosing by them loses: the logarithms of how much slower than the best, summed. An algorithm that
// cannot carry a size leaves it to the next one, as groups do.
double loss(const TuneTimes& times, const std::set<Bytes>& sizes, const Ends& max,
            Bytes lamport_min = nothing, Bytes lamport_max = nothing) {
    double sum = 0;
    for (const Bytes bytes : sizes) {
        const bool lamport = bytes >= lamport_min && bytes <= lamport_max;
        const double* us = lamport ? time_of(times, lamport_algorithm, bytes) : nullptr;
        for (std::size_t i = 0; i < max.size() && !us; ++i)
            if (bytes <= max[i]) us = time_of(times, tuned_algorithms[i], bytes);
        if (!us) us = best_of(times, large, bytes);
        if (us) sum += std::log(*us / *best_of(times, columns, bytes));
    }
    return sum;
}

// GB/s between the two largest sizes, which start-up does not enter; of the largest alone where noise would
// make it endless.
double slope(const Sizes& times, double factor) {
    const auto last = std::prev(times.end());
    const auto before = std::prev(last);
    const double us = last->second - before->second;
    const auto bytes = static_cast<double>(last->first - before->first);
    if (us > last->second / 20) return bytes * factor / us / 1000;
    return static_cast<double>(last->first) * factor / std::max(last->second, 1e-3) / 1000;
}

// Sizes up to 64 bytes cost the same: the one that was disturbed least.
double quickest_small(const Sizes& times) {
    double best = times.begin()->second;
    for (const auto& [bytes, us] : times)
        if (bytes <= 64) best = std::min(best, us);
    return best;
}

}  // namespace

std::string forcing(const std::string& algorithm) {
    const auto max = [&](std::size_t which) {
        return algorithm == tuned_algorithms[which] ? everything : nothing;
    };
    const bool pushed = algorithm == pushed_algorithm, ring = algorithm == ring_algorithm;
    nlohmann::ordered_json json = {{"version", 1},
                                   {"push_gb_per_s", pushed ? 1e6 : 0.0},
                                   {"ring_gb_per_s", ring ? 1e6 : 0.0},
                                   {"one_shot_max", max(0)},
                                   {"lamport_max", algorithm == lamport_algorithm ? everything : nothing},
                                   {"packets_max", max(1)},
                                   {"lines_max", max(2)}};
    if (pushed || ring) json["link_gb_per_s"] = 1e-3;  // what these are to be quicker than
    return json.dump(2) + "\n";
}

void add_times(TuneTimes& times, const std::string& algorithm, const std::vector<Line>& lines) {
    for (const Line& line : lines)
        if (line.engine == "sidestep" && !line.us.empty() && !line.call.in_place &&
            line.path.starts_with(algorithm))
            times[algorithm][line.call.bytes] = quantile(line.us, 0.25);
}

Result<Tuned> tuned_from(const TuneTimes& times, int ranks) {
    for (const char* algorithm : {tuned_algorithms[0], tuned_algorithms[1], tuned_algorithms[3]})
        if (const auto found = times.find(algorithm); found == times.end() || found->second.size() < 2)
            return Error{ErrorCode::unsupported,
                         fmt::format("groups of this machine did not take {}", algorithm), "tune",
                         "sidestep bench collective shows what they take"};
    const std::set<Bytes> sizes = sizes_of(times);
    std::vector<Bytes> ends{nothing};
    ends.insert(ends.end(), sizes.begin(), sizes.end());
    Tuned tuned;
    tuned.one_shot_max = tuned.lamport_max = tuned.packets_max = tuned.lines_max = nothing;
    double min = loss(times, sizes, {nothing, nothing, nothing});
    for (const Bytes one_shot : ends)
        for (const Bytes packets : ends)
            for (const Bytes lines : ends) {
                if (packets < one_shot || lines < packets) continue;
                const double lost = loss(times, sizes, {one_shot, packets, lines});
                if (lost >= min) continue;
                min = lost;
                tuned.one_shot_max = one_shot;
                tuned.packets_max = packets;
                tuned.lines_max = lines;
            }
    for (const Bytes begin : ends)
        for (const Bytes end : ends) {
            const double lost =
                loss(times, sizes, {tuned.one_shot_max, tuned.packets_max, tuned.lines_max}, begin, end);
            if (end < begin || lost >= min) continue;
            min = lost;
            tuned.lamport_min = begin;
            tuned.lamport_max = end;
        }
    const Sizes &one_shot = times.at(tuned_algorithms[0]), &two_phase = times.at(tuned_algorithms[1]),
                &slices = times.at(tuned_algorithms[3]);
    // Of next to no bytes: a launch and a hop; a launch and two hops.
    const double one_hop = quickest_small(one_shot), two_hops = quickest_small(two_phase);
    tuned.hop_us = std::clamp(two_hops - one_hop, 0.05, 1e4);
    tuned.launch_us = std::clamp(one_hop - tuned.hop_us, 0.1, 1e4);
    const double both_phases = 2.0 * (ranks - 1) / ranks;
    tuned.packet_gb_per_s = std::max(slope(two_phase, both_phases) * (1 + polling), 1e-3);
    tuned.link_gb_per_s = std::max(slope(slices, both_phases), 1e-3);
    if (const auto pushed = times.find(pushed_algorithm); pushed != times.end() && pushed->second.size() > 1)
        tuned.push_gb_per_s = std::max(slope(pushed->second, both_phases), 1e-3);
    if (const auto ring = times.find(ring_algorithm); ring != times.end() && ring->second.size() > 1)
        tuned.ring_gb_per_s = std::max(slope(ring->second, both_phases), 1e-3);
    return tuned;
}

std::string Tuned::to_json(const std::string& machine) const {
    nlohmann::ordered_json json = {{"version", 1},
                                   {"machine", machine},
                                   {"launch_us", launch_us},
                                   {"hop_us", hop_us},
                                   {"link_gb_per_s", link_gb_per_s},
                                   {"push_gb_per_s", push_gb_per_s},
                                   {"packet_gb_per_s", packet_gb_per_s},
                                   {"one_shot_max", one_shot_max},
                                   {"lamport_min", lamport_min},
                                   {"lamport_max", lamport_max},
                                   {"packets_max", packets_max},
                                   {"lines_max", lines_max}};
    if (ring_gb_per_s) json["ring_gb_per_s"] = *ring_gb_per_s;
    return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string Tuned::to_string() const {
    std::string above = fmt::format("slices at {:.3g} GB/s", link_gb_per_s);
    if (push_gb_per_s > 0) above += fmt::format(", pushed ones at {:.3g}", push_gb_per_s);
    if (ring_gb_per_s) above += fmt::format(", a ring at {:.3g}", *ring_gb_per_s);
    const std::string lamport = lamport_max <= nothing
                                    ? std::string("no one-shot Lamport")
                                    : fmt::format("of floats one-shot Lamport from {} up to {}",
                                                  format_bytes(lamport_min), format_bytes(lamport_max));
    return fmt::format("one-shot packets up to {}, packets up to {}, lines up to {}; {}; above these {}\n",
                       format_bytes(one_shot_max), format_bytes(packets_max), format_bytes(lines_max),
                       lamport, above);
}

std::string times_text(const TuneTimes& times) {
    std::vector<std::vector<std::string>> rows{{"all_reduce, us"}};
    for (const char* algorithm : columns) rows.front().push_back(algorithm);
    for (const Bytes bytes : sizes_of(times)) {
        rows.push_back({format_bytes(bytes)});
        for (const char* algorithm : columns) {
            const double* us = time_of(times, algorithm, bytes);
            rows.back().push_back(
                !us ? "-" : fmt::format("{:.2f}{}", *us, *us == *best_of(times, columns, bytes) ? " *" : ""));
        }
    }
    return align(rows);
}

}  // namespace sidestep::bench::collective
