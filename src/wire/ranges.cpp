#include "wire/ranges.hpp"

#include <algorithm>

namespace sidestep::wire {

bool Ranges::add(Range range) {
    if (range.begin == range.end) return true;
    const auto after = std::partition_point(ranges_.begin(), ranges_.end(),
                                            [&](const Range& one) { return one.end < range.begin; });
    auto last = after;
    for (; last != ranges_.end() && last->begin <= range.end; ++last)
        if (last->begin < range.end && range.begin < last->end) return false;
    if (after == last) {
        ranges_.insert(after, range);
        return true;
    }
    after->begin = std::min(after->begin, range.begin);
    after->end = std::max((last - 1)->end, range.end);
    ranges_.erase(after + 1, last);
    return true;
}

std::vector<Range> Ranges::missing(Bytes size) const {
    std::vector<Range> gaps;
    Bytes at = 0;
    for (const Range& one : ranges_) {
        if (one.begin > at) gaps.push_back({at, one.begin});
        at = one.end;
    }
    if (at < size) gaps.push_back({at, size});
    return gaps;
}

}  // namespace sidestep::wire
