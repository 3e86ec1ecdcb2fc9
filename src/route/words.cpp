#include "route/words.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace sidestep::route {

std::string engine_words(const Hop& hop) {
    return hop.engine.starts_with(hop.backend) ? hop.engine : hop.backend + " " + hop.engine;
}

std::string by_words(const Hop& hop) {
    return way_words({hop}) + " by " + engine_words(hop);
}

std::string way_words(const std::vector<Hop>& hops) {
    std::string text = hops.front().from.to_string();
    for (const Hop& hop : hops) text += " -> " + hop.to.to_string();
    return text;
}

std::string joined(const std::string& a, const std::string& b) {
    return a.empty() ? b : b.empty() ? a : a + "; " + b;
}

void refuse(std::vector<Refused>& list, Refused refused) {
    const bool known = std::any_of(list.begin(), list.end(), [&](const Refused& other) {
        return other.path == refused.path && other.reason == refused.reason;
    });
    if (!known) list.push_back(std::move(refused));
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
