// Which bytes of something have come, however they were cut.
#pragma once

#include <vector>

#include <sidestep/units.hpp>

namespace sidestep::wire {

struct Range {
    Bytes begin = 0;
    Bytes end = 0;

    Bytes size() const { return end - begin; }
    bool operator==(const Range&) const = default;
};

// Ranges that do not overlap, in order; neighbours are one. Few at a time: what is sent comes nearly in order.
class Ranges {
public:
    // False, and nothing is added, where a byte of it is there already. An empty one changes nothing.
    bool add(Range range);
    // What is not there of the first `size` bytes.
    std::vector<Range> missing(Bytes size) const;

private:
    std::vector<Range> ranges_;
};

}  // namespace sidestep::wire
