#include "base/nearest_name.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace sidestep::base {

namespace {

// Letters put in, taken out, replaced or exchanged with their neighbour that make `b` of `a`.
std::size_t changes(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before(b.size() + 1);  // the row before the last
    std::vector<std::size_t> last(b.size() + 1);
    std::iota(last.begin(), last.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::vector<std::size_t> row(b.size() + 1, i);
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before[j - 2] + 1);
        }
        before = std::move(last);
        last = std::move(row);
    }
    return last[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view typed, const std::vector<std::string>& known) {
    constexpr std::size_t longest = 64;  // of a name that is worth the comparison
    if (typed.size() > longest) return {};
    const std::size_t letters = typed.size() - std::min(typed.find_first_not_of('-'), typed.size());
    std::size_t fewest = std::clamp<std::size_t>(letters / 3, 1, 3) + 1;
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
                         std::string_view hint) {
    const std::string nearest = nearest_name(typed, known);
    return nearest.empty() || nearest == typed ? std::string(hint)
                                               : fmt::format("did you mean '{}'? {}", nearest, hint);
}

}  // namespace sidestep::base
