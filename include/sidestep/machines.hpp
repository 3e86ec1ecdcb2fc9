// The machines that can be looked at without having them.
#pragma once

#include <string>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/result.hpp>

namespace sidestep {

struct KnownMachine {
    std::string name;       // what Topology::open() and --machine take
    bool recorded = false;  // a record or topology file that came with the command; false: built in
    std::string words;      // "NVIDIA DGX H100: 8 H100, 4 NVSwitches"

    bool operator==(const KnownMachine&) const = default;
};

// The built-in machines, then the recorded ones that came with the command. A recorded one that cannot be read
// is an error.
SIDESTEP_API Result<std::vector<KnownMachine>> known_machines();

}  // namespace sidestep
