#include "bench/report.hpp"

#include <algorithm>

namespace sidestep::bench {

double Samples::median() const {
    if (values.empty()) return 0;
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
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
