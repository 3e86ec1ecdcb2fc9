// What one stage of a load or a save did.
#pragma once

#include <string>

#include <sidestep/units.hpp>

namespace sidestep {

// One of the stages that a load or a save runs at the same time.
struct Stage {
    std::string name;  // "read", "host to GPU", "GPU to GPU", "verify", "GPU to host", "write"
    Bytes bytes = 0;
    double busy_seconds = 0;   // while at least one piece of it was in flight
    double limit_seconds = 0;  // while the others could only wait for it

    double gb_per_s() const { return busy_seconds > 0 ? static_cast<double>(bytes) / busy_seconds / 1e9 : 0; }
};

}  // namespace sidestep
