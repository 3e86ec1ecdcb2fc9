// A machine in a folder: what a test replays, and what a bug report holds.
#pragma once

#include <string>

#include <sidestep/api.h>
#include <sidestep/result.hpp>

namespace sidestep {

// Writes everything that the topology's readers and the doctor look at on this machine into `folder`, which
// is made and must not hold anything yet: the files of /sys, /proc and /etc that were read, the names of the
// folders that were listed, and the answers of NVML, the CUDA driver and libibverbs. Topology::live(folder)
// and run_doctor() then find there what they find here. Host names, network addresses, serial numbers, UUIDs
// and environment variables of other programs are left out or masked (docs/topology.md). Returns a sentence
// that says what was written; ErrorCode::io_error names the file that could not be.
SIDESTEP_API Result<std::string> record_machine(const std::string& folder);

}  // namespace sidestep
