// The network plugin of this process. It runs in the process and can do to it what it likes: so it is loaded only where it is
// asked for.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/topology.hpp>
#include <sidestep/units.hpp>

#include "driver/nccl_net.hpp"

namespace sidestep::backends::ncclnet {

using Time = std::chrono::steady_clock::time_point;

// How long is waited for a plugin that does not answer.
struct Patience {
    std::chrono::milliseconds start{10'000};
    std::chrono::milliseconds join{15'000};     // for both ends to be connected
    std::chrono::milliseconds silence{15'000};  // while something is in flight
    std::chrono::milliseconds close{5'000};
};

struct Options {
    std::string plugin;        // a path, or a name; empty: as NCCL finds it
    Bytes most_pinned = 0;     // of what is prepared; 0: half of the machine's memory
    std::size_t bounces = 16;  // buffers of max_push bytes for memory that is not prepared, each way
    Patience patience;
    const Topology* topology = nullptr;  // outlives the engine; null: no device is nearer to anything
};

// One that has been started, with the devices that are used: the quickest, of which there may be several.
struct Plugin {
    std::shared_ptr<driver::NcclNet> net;
    std::vector<driver::NcclNetDevice> devices;
};

// Which libraries are tried: those of `name`; where it is empty, those of NCCL_NET_PLUGIN; else libnccl-net.so.
std::vector<std::string> plugin_libraries(const std::string& name);

// Loads and starts it at the first request in a process; every later call gets the same answer. A plugin
// cannot be unloaded, and one that hangs cannot be stopped: its thread is abandoned.
Result<Plugin> start_plugin(const Options& options);

}  // namespace sidestep::backends::ncclnet
