// Another machine that serves: what it is made of, and what both ends say of the connection to it.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/context.hpp>
#include <sidestep/result.hpp>
#include <sidestep/topology.hpp>

namespace sidestep {

// The topology of a node, as it sees itself, without the notes of its reader; its name is `node`. unsupported where the
// node runs a version that does not tell. Other errors are those of Context::connect.
SIDESTEP_API Result<Topology> topology_of(const Context& context, const std::string& node);

// What a machine says of its end of a connection, by name; docs/network.md lists the names. What it could not find out is
// not there.
using EndFacts = std::map<std::string, std::string, std::less<>>;

// One address at which a node is to be reached, tried just now.
struct TriedAddress {
    std::string address;  // "10.0.0.2:47900"
    std::string refusal;  // why it was not reached; empty: it was
};

// How far the node's clock is ahead of this machine's. The question took twice `bound`, so it is no further off than that.
struct ClockDifference {
    std::chrono::nanoseconds ahead{0};
    std::chrono::nanoseconds bound{0};
};

struct NodeLook {
    std::string node;    // as it is called here
    std::string engine;  // that carries copies to it: "tcp"
    EndFacts here;
    EndFacts there;
    std::vector<TriedAddress> addresses;
    std::optional<ClockDifference> clock;
};

// Asks a node about its end of the connection, and looks at this one. Moves nothing. Errors as topology_of.
SIDESTEP_API Result<NodeLook> look_at_node(const Context& context, const std::string& node);

}  // namespace sidestep
