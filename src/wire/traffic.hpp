// Bytes that clients moved to and from places of one kind.
#pragma once

#include <atomic>

#include <sidestep/units.hpp>

namespace sidestep::wire {

struct Traffic {
    std::atomic<Bytes> received{0};
    std::atomic<Bytes> sent{0};
};

}  // namespace sidestep::wire
