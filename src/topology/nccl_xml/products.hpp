// What the numbers of processors and GPUs in a topology file stand for, and back.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <sidestep/topology.hpp>

namespace sidestep::topology::nccl_xml {

constexpr long nvidia = 0x10de;
constexpr long amd = 0x1002;

// A GPU as PCI and the files know it.
struct Product {
    long vendor;
    long device;
    std::string_view model;  // as nvidia-smi and rocm-smi call it
    int sm;                  // NVIDIA: ten times the compute capability; AMD: the number of compute units
    std::string_view gcn;    // AMD: "gfx942"; empty for NVIDIA
};

// nullptr for what is not in our list.
const Product* product(long vendor, long device);
const Product* product(std::string_view model);

// Ten times the compute capability of a GPU called so, by the family its name tells; 0 where it tells none.
int sm_of_model(std::string_view model);
// The one that has NVLinks of that rate; 0 where several or none do.
int sm_of_nvlink(double gb_per_s);

// One NVLink of a GPU of that compute capability, one direction; 25 for one that is not known (0).
double nvlink_gb_per_s(int sm);
// "gfx90a" for what RCCL's files call "gfx90a", "90a" or "910".
std::string gfx_name(std::string_view gcn);
// One Infinity Fabric link of a GPU of that architecture ("gfx942"), one direction.
double xgmi_gb_per_s(std::string_view architecture);

// What a <cpu> says of its processor. `vendor` as the processor itself writes it ("GenuineIntel").
struct Processor {
    std::string arch;
    std::string vendor;
    std::string family;
    std::string model;
};

// "GenuineIntel family 6 model 143"; empty where nothing is known.
std::string processor_text(const Processor& processor);
// What stands behind such a text or behind "Intel Xeon Platinum 8480C"; nullopt where nothing does.
std::optional<Processor> processor_of(std::string_view text);

}  // namespace sidestep::topology::nccl_xml
