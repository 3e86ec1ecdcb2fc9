// Facts about the machine that no single device shows: kernel, IOMMU, virtualisation, drivers, access
// control. Each comes with the place it was read from, for the doctor and for the topology's properties.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <sidestep/units.hpp>
#include "driver/machine_files.hpp"

namespace sidestep::topology {

// A fact that could not be read has an empty value; `source` then says what was looked at.
struct Fact {
    std::string value;
    std::string source;

    bool known() const { return !value.empty(); }
};

// "6.18.5-1-amd64".
Fact kernel_release(const driver::MachineFiles& files);
// The value of a word of the kernel's command line ("iommu" -> "pt"); empty where it is not given, "1" where
// it stands without a value. Of several the last counts, as for the kernel.
Fact kernel_argument(const driver::MachineFiles& files, const std::string& name);
// Whether the kernel was built with an option ("CONFIG_PCI_P2PDMA"): "y", "m", "n"; unknown where neither
// /proc/config.gz (not read, it is packed) nor /boot/config-RELEASE can be read. A value of "n" also stands
// for an option that the file does not name.
Fact kernel_option(const driver::MachineFiles& files, const std::string& option);

// What the IOMMU does with the DMA of devices: "off" (no groups), "pass-through" (groups of type identity),
// "translating" (DMA, DMA-FQ), "mixed"; empty where /sys cannot be read.
Fact iommu_mode(const driver::MachineFiles& files);
// The number of the group of a PCI device; empty without IOMMU.
Fact iommu_group(const driver::MachineFiles& files, const std::string& bus_id);
// Its type: "identity", "DMA", "DMA-FQ".
Fact iommu_group_type(const driver::MachineFiles& files, const std::string& bus_id);

// "kvm", "vmware", "xen", "hyper-v", "virtual machine"; "none" on bare metal; empty where it cannot be told.
Fact hypervisor(const driver::MachineFiles& files);
// "docker", "podman", "kubernetes", "gvisor", "container"; "none" outside.
Fact container(const driver::MachineFiles& files);

// "580.159.04"; empty without a driver.
Fact nvidia_driver(const driver::MachineFiles& files);
// "open" or "closed": which of the two kernel modules is loaded.
Fact nvidia_driver_kind(const driver::MachineFiles& files);
// The version (or "loaded") of nvidia-peermem, of nvidia-fs; empty where the module is not loaded.
Fact nvidia_peermem(const driver::MachineFiles& files);
Fact nvidia_fs(const driver::MachineFiles& files);
// Whether the kernel has PCI peer-to-peer DMA: "yes", "no", empty where it cannot be told.
Fact kernel_p2pdma(const driver::MachineFiles& files);

// The variables the process was started with; nullopt where /proc/self/environ cannot be read. The first MiB
// of them counts.
std::optional<std::map<std::string, std::string>> process_environment(const driver::MachineFiles& files);
// One of them; empty where it is not set.
std::string process_variable(const driver::MachineFiles& files, const std::string& name);

// PCI access control (ACS) of a bridge's port.
struct AcsBits {
    // Requests, completions or upstream forwarding: bits 2, 3, 4 of control and capability.
    bool redirects = false;
    unsigned control = 0;  // the control register
};
// Read from the port's configuration space, of which a process without CAP_SYS_ADMIN sees 64 bytes: nullopt
// then. (PCI Express base specification, extended capability 0x000d.)
std::optional<AcsBits> acs_of(const driver::MachineFiles& files, const std::string& port_bus_id);

// The bus ids from the root port down to a device, the device last; empty where /sys does not show it.
std::vector<std::string> pci_walk(const driver::MachineFiles& files, const std::string& bus_id);

// Whether the ports between two devices below a common switch redirect: "on", "off", "unknown", and how that
// is known: "read" (configuration space) or "inferred" (the IOMMU groups of the devices and their ports).
struct AcsBetween {
    std::string state = "unknown";
    std::string how;
    std::vector<std::string> ports;  // bus ids of the ports that redirect, where they were read
    std::vector<Fact> seen;
};
AcsBetween acs_between(const driver::MachineFiles& files, const std::string& a, const std::string& b);

// The size of a PCI device's memory region (BAR), from its `resource` file; 0 where it is not there.
Bytes bar_size(const driver::MachineFiles& files, const std::string& bus_id, int region);
// The largest size a resizable BAR offers; 0 where it is not resizable or the kernel is older than 6.1.
Bytes bar_largest(const driver::MachineFiles& files, const std::string& bus_id, int region);

}  // namespace sidestep::topology
