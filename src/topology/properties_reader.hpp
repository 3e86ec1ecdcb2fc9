// What a machine's devices say about themselves beyond what a route needs: Device::properties,
// Parts::properties, and Device::acs_redirect. docs/topology.md lists the names.
#pragma once

#include "topology/machine_source_reader.hpp"
#include "topology/parts_builder.hpp"

namespace sidestep::topology {

// Adds to devices that read_sysfs() and merge_nvml() made. What cannot be read is left out.
void add_properties(PartsBuilder& builder, const MachineSource& source);

}  // namespace sidestep::topology
