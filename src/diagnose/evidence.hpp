// What a check may look at: one machine, live or recorded.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <sidestep/probe_report.hpp>
#include <sidestep/topology.hpp>

#include "driver/cuda_facts.hpp"
#include "driver/kernel_log.hpp"
#include "driver/machine_files.hpp"
#include "driver/nvml.hpp"
#include "driver/verbs_facts.hpp"
#include "topology/machine_source_reader.hpp"

namespace sidestep::diagnose {

// Values only; a test fills in what its check needs. Where a driver was not there its facts say why.
struct Evidence {
    Topology topology;
    driver::MachineFiles files;
    std::shared_ptr<const driver::Nvml> nvml;  // null: no_nvml says why
    std::string no_nvml;
    driver::CudaFacts cuda;
    driver::VerbsFacts verbs;
    std::optional<ProbeReport> probe;  // measured pairs, where someone probed them
    // A built-in machine or a topology file: `files` holds nothing, and `nvml` answers out of the topology.
    bool from_topology = false;
    driver::KernelLog kernel_log{};
    std::optional<Topology> expected{};  // what the machine should be, where somebody said so
};

// The machine this process runs on, or the one recorded below `root`.
Result<Evidence> gather(const std::string& root);
Result<Evidence> gather(topology::MachineSource source);

}  // namespace sidestep::diagnose
