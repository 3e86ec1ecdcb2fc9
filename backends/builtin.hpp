// The list of backends: the one place where they are named.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/result.hpp>

#include "backend/network.hpp"
#include "backend/registry.hpp"
#include "base/environment.hpp"

namespace sidestep::backends {

// Adds every backend of this build, and notes those it leaves out. An emulated machine has no use for
// the backends of real devices: they are not added, since nobody would ask why they are off.
void add_builtin(backend::Registry& registry, const Topology& topology, const base::Environment& environment);

// What carries bytes between machines, the best first. Where an engine is asked for that cannot be had: an error which says in
// one sentence why, and what to do.
using Engines = std::vector<std::unique_ptr<backend::NetworkEngine>>;
// The topology outlives them.
Result<Engines> make_network_engines(const base::Environment& environment, const Topology& topology);

// Why there is no engine of that name, and what to do: "verbs", "ncclnet", "tcp". Tries to make it once more.
struct EngineRefusal {
    std::string reason;
    std::string remedy;
};
EngineRefusal why_no_engine(const base::Environment& environment, std::string_view name);

}  // namespace sidestep::backends
