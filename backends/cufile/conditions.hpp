// What has to hold on a machine before cuFile can be direct: facts that cost nothing to look at, while
// loading the library and opening its driver is said to take 2 seconds.
#pragma once

#include <string>
#include <vector>

#include <sidestep/topology.hpp>
#include "backend/support.hpp"
#include "driver/machine_files.hpp"

namespace sidestep::backends::cufile {

// One thing that is missing.
struct Missing {
    std::string what;  // "the kernel is 5.15, P2PDMA mode needs 6.2"
    std::string remedy;
};

struct Conditions {
    std::vector<Missing> always;     // whatever the way
    std::vector<Missing> nvidia_fs;  // empty: the module nvidia-fs is there
    std::vector<Missing> p2pdma;     // empty: the kernel's own peer-to-peer DMA is set up

    // One of the two ways may be open.
    bool met() const { return always.empty() && (nvidia_fs.empty() || p2pdma.empty()); }
    // No, with everything that is missing, where met() is false.
    backend::Support refusal() const;
};

// The same conditions as doctor's checks nvidia-fs, p2pdma-mode, no-udev, closed-driver and bar1-small.
Conditions read_conditions(const driver::MachineFiles& files, const Topology& topology);

}  // namespace sidestep::backends::cufile
