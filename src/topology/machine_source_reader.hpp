// Where the facts about a machine come from: this machine, or a folder in which one was recorded.
#pragma once

#include <memory>
#include <string>

#include <sidestep/result.hpp>
#include <sidestep/topology.hpp>
#include "driver/machine_files.hpp"
#include "driver/nvml.hpp"

namespace sidestep::topology {

struct MachineSource {
    driver::MachineFiles files;
    std::shared_ptr<const driver::Nvml> nvml;  // null: no_nvml says why
    std::string no_nvml;

    // In a recorded folder, below its root.
    static constexpr const char* nvml_record = "/sidestep/nvml.json";
    static constexpr const char* unfinished =
        "/sidestep/unfinished";  // while the folder is written: no record yet
};

// `root` is "" for this machine. A folder without a record of NVML is a machine without it; a record that
// cannot be read is an error, and so is a folder that is not there.
Result<MachineSource> open_source(const std::string& root);

// The topology of a source: what Topology::live() gives.
Result<Topology> read_topology(const MachineSource& source);

}  // namespace sidestep::topology
