// What the P2PDMA mode of NVIDIA's cuFile needs of a machine: facts that cost nothing to look at, for its backend and
// for the doctor alike.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <sidestep/topology.hpp>
#include "topology/machine_facts_reader.hpp"

namespace sidestep::topology {

// Whether cuFile takes the value of a variable for a yes.
bool is_on(const std::string& value);

// Whether NVLink-C2C joins every GPU to a CPU: their memory lies in the CPU's address space then.
bool all_c2c(const Topology& topology);

// Whether programs can map peer memory with this kernel: since Linux 6.2; Red Hat's 5.14 of release 9.4 can too. True
// where the release is not told.
bool maps_peer_memory(const std::string& kernel_release);

struct Setting {
    std::optional<bool> on;  // nothing: not told
    Fact seen;               // in words, also of what is not there
};
// The driver's registry keys for a static BAR1.
Setting static_bar1(const driver::MachineFiles& files, const Topology& topology);
// cuFile's use_pci_p2pdma, by variable or settings file.
Setting cufile_p2pdma(const driver::MachineFiles& files);

// Whether the text of a cufile.json, which may have comments, switches `use_pci_p2pdma` on. Every key of that
// name counts: some releases want it among the properties, some below block.nvme.
bool asks_for_p2pdma(std::string_view json);

}  // namespace sidestep::topology
