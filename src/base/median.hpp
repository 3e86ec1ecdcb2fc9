// The one median of the tree.
#pragma once

#include <algorithm>
#include <vector>

namespace sidestep::base {

// The one in the middle; of an even number the mean of the two there; 0 of none.
inline double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace sidestep::base
