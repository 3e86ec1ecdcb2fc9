// What a node has counted, as Prometheus reads it (text format 0.0.4).
#pragma once

#include <string>

#include <sidestep/units.hpp>
#include "wire/counters.hpp"

namespace sidestep::wire {

// Beside the counters.
struct NodeState {
    std::string node;
    std::size_t clients = 0;
    std::size_t probes = 0;
    Bytes received = 0;
    Bytes sent = 0;
};

std::string metrics_text(const Counters& counters, const NodeState& state);

}  // namespace sidestep::wire
