#include "route/words.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/printable.hpp"

namespace sidestep::route {

std::string shown(const Place& place) {
    std::string text = place.to_string();
    base::make_printable(text);
    return text;
}

std::string arrows(const std::vector<Place>& places) {
    std::string text;
    for (const Place& place : places) text += (text.empty() ? "" : " -> ") + shown(place);
    return text;
}

std::string arrows(const std::vector<Hop>& hops) {
    std::vector<Place> places{hops.front().from};
    for (const Hop& hop : hops) places.push_back(hop.to);
    return arrows(places);
}

std::string engine_words(const Hop& hop) {
    return hop.engine.starts_with(hop.backend) ? hop.engine : hop.backend + " " + hop.engine;
}

std::string hop_words(const Hop& hop) {
    return arrows({hop.from, hop.to}) + " by " + engine_words(hop);
}

std::string joined(const std::string& a, const std::string& b) {
    return a.empty() ? b : b.empty() ? a : a + "; " + b;
}

std::string slower_words(double seconds, double best_seconds, const char* taken) {
    const double times = best_seconds > 0 ? seconds / best_seconds : 1;
    if (times < 1.05) return fmt::format("no faster than the {} taken", taken);
    return (times < 10 ? fmt::format("{:.2g}", times) : fmt::format("{:.0f}", times)) + " times as long";
}

void refuse(std::vector<Refused>& list, std::string path, std::string reason, std::string remedy,
            double gb_per_s) {
    base::make_printable(reason);
    const bool known = std::ranges::any_of(
        list, [&](const Refused& other) { return other.path == path && other.reason == reason; });
    if (!known) list.push_back({std::move(path), std::move(reason), std::move(remedy), gb_per_s});
}

Error nothing_left(std::string message, const std::vector<Refused>& refused) {
    std::string hint;
    for (const Refused& other : refused) {
        message += fmt::format("; {}: {}", other.path, other.reason);
        if (hint.empty()) hint = other.remedy;
    }
    return {ErrorCode::path_unavailable, std::move(message), "route", std::move(hint)};
}

}  // namespace sidestep::route
