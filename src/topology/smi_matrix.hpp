// The text that `nvidia-smi topo -m` prints, as a topology.
#pragma once

#include <string>
#include <string_view>

#include <sidestep/topology.hpp>

namespace sidestep::topology {

// The matrix names devices and how near they are, and tells no rates: PCIe links count as gen4 x16, NVLinks as those
// of the generation that comes in this number, and notes say so. ErrorCode::invalid_argument names the line that is
// wrong.
Result<Topology> read_smi_matrix(std::string_view text, const std::string& where);

}  // namespace sidestep::topology
