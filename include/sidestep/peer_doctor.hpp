// Why copies to another machine are off or slow: both ends looked at, compared, and tried with real bytes.
#pragma once

#include <string>

#include <sidestep/api.h>
#include <sidestep/context.hpp>
#include <sidestep/doctor.hpp>

namespace sidestep {

struct PeerDoctorOptions {
    Bytes bytes = Bytes{16} << 20;  // of one copy; what is left over of 8 is not copied
};

// Compares this machine with a node that serves: versions, engines, interfaces, RDMA, limits, clocks. Then allocates host
// memory of the node and memory of each of its GPUs, as far as it allows that, copies random bytes there and back, compares
// them and takes the time. Frees all of it, and changes nothing else. Errors as topology_of (sidestep/node.hpp).
SIDESTEP_API Result<Diagnosis> run_peer_doctor(const Context& context, const std::string& node,
                                               const PeerDoctorOptions& options = {});

}  // namespace sidestep
