// NVMe drives as /sys/class/nvme shows them.
#pragma once

#include <string>
#include <vector>

#include "driver/machine_files.hpp"

namespace sidestep::diagnose {

constexpr const char* nvme_folder = "/sys/class/nvme";

struct NvmeDrive {
    std::string name;       // "nvme0"
    std::string transport;  // "pcie", "tcp", "rdma"
    std::string bus_id;     // empty: not in this machine's PCI tree
};

std::vector<NvmeDrive> nvme_drives(const driver::MachineFiles& files);

}  // namespace sidestep::diagnose
