#include "base/nearest_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace sidestep::base {

namespace {

// Insertions, removals and replacements of one letter that make `b` of `a`.
std::size_t changes(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
        }
    }
    return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view typed, const std::vector<std::string>& known) {
    constexpr std::size_t longest = 64;  // of a name that is worth the comparison
    if (typed.size() > longest) return {};
    std::size_t fewest = std::max<std::size_t>(1, typed.size() / 3) + 1;
    std::string nearest;
    for (const std::string& name : known) {
        const std::size_t needed = changes(typed, name);
        if (needed >= fewest) continue;
        fewest = needed;
        nearest = name;
    }
    return nearest;
}

std::string did_you_mean(std::string_view typed, const std::vector<std::string>& known,
                         std::string_view list) {
    const std::string nearest = nearest_name(typed, known);
    if (!nearest.empty()) return fmt::format("did you mean '{}'?", nearest);
    std::string names;
    for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
    return fmt::format("{}: {}", list, names);
}

}  // namespace sidestep::base
