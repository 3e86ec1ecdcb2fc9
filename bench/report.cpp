#include "bench/report.hpp"

#include <algorithm>

#include "base/median.hpp"

namespace sidestep::bench {

double Samples::median() const {
    return base::median(values);
}

double Samples::min() const {
    return values.empty() ? 0 : *std::min_element(values.begin(), values.end());
}

double Samples::max() const {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

double Figure::share_of_limit() const {
    const double median = measured.median();
    if (limit <= 0 || median <= 0) return 0;
    return more_is_better ? median / limit : limit / median;
}

}  // namespace sidestep::bench
