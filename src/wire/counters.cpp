#include "wire/counters.hpp"

#include <algorithm>

namespace sidestep::wire {

void Counters::answered(Word word, const Result<std::string>& answer, std::chrono::nanoseconds took) {
    const auto outcome = answer ? std::size_t{0} : static_cast<std::size_t>(answer.error().code);
    answered_[static_cast<std::size_t>(word)][std::min(outcome, outcomes - 1)].fetch_add(1);
    const double seconds = std::chrono::duration<double>(took).count();
    const auto* const bound = std::lower_bound(bounds.begin(), bounds.end(), seconds);
    times_[static_cast<std::size_t>(bound - bounds.begin())].fetch_add(1);
    nanoseconds_.fetch_add(static_cast<std::uint64_t>(std::max<std::int64_t>(took.count(), 0)));
}

Traffic& Counters::traffic(PlaceKind kind) {
    const auto* const found = std::find(kind_list.begin(), kind_list.end(), kind);
    return traffic_[found == kind_list.end() ? 0 : static_cast<std::size_t>(found - kind_list.begin())];
}

}  // namespace sidestep::wire
