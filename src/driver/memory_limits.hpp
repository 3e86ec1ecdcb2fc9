// How much memory may be taken before the kernel starts to end processes.
#pragma once

#include <optional>
#include <string>

#include <sidestep/units.hpp>

namespace sidestep::driver {

struct AvailableMemory {
    Bytes bytes = 0;
    std::string source;  // "MemAvailable", "the memory limit of the control group", "NUMA node 1"
};

// The least of: what the machine has (free, or held by caches that give way), what the control group
// allows, and with `numa_node` >= 0 what the node has. Nothing where none of them can be read. `root`
// stands before every path that is read ("" for the real machine).
std::optional<AvailableMemory> available_memory(int numa_node = -1, const std::string& root = "");

// What the machine has in all; 1 GiB where it does not tell.
Bytes machine_memory();

// The NUMA node of the page at an address, which is made to be there; -1 where the kernel does not tell.
int numa_node_of(const void* address);

// Bytes of private memory that pages stand behind, of this process.
Bytes resident_private_bytes();

}  // namespace sidestep::driver
