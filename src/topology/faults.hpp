// Things that go wrong with machines, made up in one that is well: to see what the doctor, a drawing or a route
// makes of it.
#pragma once

#include <string>
#include <string_view>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// "gpu:3.width=8", "acs", "fabric-down". ErrorCode::invalid_argument where there is no such fault, with the list
// of them; not_found where the machine lacks the device.
Result<void> put_fault(Topology::Parts& parts, std::string_view fault);

// Every fault in a line: how it is written, and what it is.
std::string list_of_faults();

// What a machine's property "nvidia_driver" says where no driver is loaded.
inline constexpr const char* no_driver = "not loaded";

}  // namespace sidestep::topology
