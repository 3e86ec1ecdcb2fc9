// The attributes of a topology file that our model has no place for, as properties of a device: "nccl.gdr".
#pragma once

#include <array>
#include <string>
#include <string_view>

#include <sidestep/topology.hpp>

namespace sidestep::topology::nccl_xml {

// In the order NCCL writes them. What the model holds (busid, numaid, dev, name, speed, ...) is not here.
inline constexpr std::array cpu_attributes = {"affinity", "arch", "vendor", "familyid", "modelid"};
inline constexpr std::array pci_attributes = {"vendor", "device", "subsystem_vendor", "subsystem_device"};
inline constexpr std::array gpu_attributes = {"sm", "gcn", "arch", "rank", "gdr", "mlopart"};
inline constexpr std::array net_attributes = {"port", "latency", "guid", "maxconn", "gdr",  "coll",
                                              "net",  "gin",     "rma",  "rail",    "plane"};

// The value of an attribute that a file leaves out where the writer would otherwise put one.
constexpr std::string_view absent = "none";

std::string property_name(std::string_view attribute);  // "nccl.gdr"
// nullptr where the device has no such property.
const std::string* find_property(const Device& device, std::string_view attribute);

// Names that a live machine's devices have as well: "9.0", "gfx942", "400000".
constexpr std::string_view compute_capability = "cc";
constexpr std::string_view gfx = "gfx";
constexpr std::string_view network_rate = "net_mb_per_s";
// "1" for a card that hangs at its <cpu> without a PCI address, and for a GPU whose C2C is IBM's NVLink.
constexpr std::string_view virtual_card = "virtual";
constexpr std::string_view cpu_nvlink = "cpu_nvlink";
// `absent` for a GPU whose <pci> has no <gpu>: NCCL fills that in on the machine.
constexpr std::string_view no_gpu = "gpu";
// Tells host bridges below one <cpu> apart: ours, NCCL passes it over.
constexpr const char* bridge_attribute = "sidestep_bridge";

bool is_amd(const Device& gpu);
// Ten times the compute capability, 0 where the device does not say.
int sm_of(const Device& gpu);
void set_sm(Device& gpu, int sm);
// What a network card carries in Mb/s; 0 where it does not say.
long network_mb_per_s(const Device& nic);
// The PCI class of a device whose property "nccl.class" says nothing else.
std::string_view usual_class(const Device& device);

}  // namespace sidestep::topology::nccl_xml
