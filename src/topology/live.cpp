// The machine this process runs on, and machines by name.
#include <sidestep/topology.hpp>

#include "base/try.hpp"
#include "topology/machine_source_reader.hpp"

namespace sidestep {

Result<Topology> Topology::live(const std::string& root) {
    SIDESTEP_TRY(const topology::MachineSource source, topology::open_source(root));
    return topology::read_topology(source);
}

}  // namespace sidestep
