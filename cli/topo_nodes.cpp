#include "topo_nodes.hpp"

#include <utility>

#include <sidestep/node.hpp>

namespace sidestep::cli {

Result<std::vector<Topology>> topologies_of(const std::vector<std::string>& nodes, const Globals& globals) {
    const auto context = open_context(globals);
    if (!context) return context.error();
    std::vector<Topology> all;
    for (const std::string& node : nodes) {
        auto told = topology_of(*context, node);
        if (!told) return told.error();
        all.push_back(std::move(*told));
    }
    return all;
}

}  // namespace sidestep::cli
