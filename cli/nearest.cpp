#include "nearest.hpp"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace sidestep::cli {
namespace {

// Letters to add, take out or change, and neighbours to exchange, until `a` is `b`.
std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::vector<std::size_t>> steps(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i)
        for (std::size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                steps[i][j] = i + j;
                continue;
            }
            steps[i][j] = std::min({steps[i - 1][j] + 1, steps[i][j - 1] + 1,
                                    steps[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                steps[i][j] = std::min(steps[i][j], steps[i - 2][j - 2] + 1);
        }
    return steps[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
    // Words from the command line may have any length.
    constexpr std::size_t longest = 64;
    std::string best;
    const std::size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
    std::size_t least = std::clamp<std::size_t>(letters / 3, 1, 3) + 1;
    if (word.size() > longest) return best;
    for (const std::string& one : known) {
        const std::size_t steps = distance(word, one);
        if (steps >= least) continue;
        least = steps;
        best = one;
    }
    return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known,
                         std::string_view hint) {
    const std::string near = nearest(word, known);
    return near.empty() || near == word ? std::string(hint) : fmt::format("did you mean {}? {}", near, hint);
}

}  // namespace sidestep::cli
