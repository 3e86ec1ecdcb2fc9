#include "topology/nccl_xml/products.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace sidestep::topology::nccl_xml {

namespace {

// From pci.ids, the list of supported GPUs of NVIDIA's open driver, and AMD's published RCCL topologies.
constexpr std::array<Product, 32> products = {{
    {nvidia, 0x15f9, "Tesla P100-SXM2-16GB", 60, ""},
    {nvidia, 0x1db1, "Tesla V100-SXM2-16GB", 70, ""},
    {nvidia, 0x1db5, "Tesla V100-SXM2-32GB", 70, ""},
    {nvidia, 0x1db8, "Tesla V100-SXM3-32GB", 70, ""},
    {nvidia, 0x1eb8, "Tesla T4", 75, ""},
    {nvidia, 0x20b0, "NVIDIA A100-SXM4-40GB", 80, ""},
    {nvidia, 0x20b2, "NVIDIA A100-SXM4-80GB", 80, ""},
    {nvidia, 0x20b5, "NVIDIA A100 80GB PCIe", 80, ""},
    {nvidia, 0x20f1, "NVIDIA A100-PCIE-40GB", 80, ""},
    {nvidia, 0x2235, "NVIDIA A40", 86, ""},
    {nvidia, 0x2237, "NVIDIA A10G", 86, ""},
    {nvidia, 0x2684, "NVIDIA GeForce RTX 4090", 89, ""},
    {nvidia, 0x26b5, "NVIDIA L40", 89, ""},
    {nvidia, 0x26b9, "NVIDIA L40S", 89, ""},
    {nvidia, 0x27b8, "NVIDIA L4", 89, ""},
    {nvidia, 0x2321, "NVIDIA H100 NVL", 90, ""},
    {nvidia, 0x2330, "NVIDIA H100 80GB HBM3", 90, ""},
    {nvidia, 0x2331, "NVIDIA H100 PCIe", 90, ""},
    {nvidia, 0x2335, "NVIDIA H200", 90, ""},
    {nvidia, 0x2342, "NVIDIA GH200 480GB", 90, ""},
    {nvidia, 0x2901, "NVIDIA B200", 100, ""},
    {nvidia, 0x2941, "NVIDIA GB200", 100, ""},
    {nvidia, 0x3182, "NVIDIA B300 SXM6 AC", 103, ""},
    {nvidia, 0x31c2, "NVIDIA GB300", 103, ""},
    {amd, 0x66a1, "AMD Instinct MI60", 64, "gfx906"},
    {amd, 0x738c, "AMD Instinct MI100", 120, "gfx908"},
    {amd, 0x740c, "AMD Instinct MI250X", 110, "gfx90a"},
    {amd, 0x740f, "AMD Instinct MI210", 104, "gfx90a"},
    {amd, 0x74a0, "AMD Instinct MI300A", 228, "gfx942"},
    {amd, 0x74a1, "AMD Instinct MI300X", 304, "gfx942"},
    {amd, 0x74a5, "AMD Instinct MI325X", 304, "gfx942"},
    {amd, 0x75a0, "AMD Instinct MI350X", 256, "gfx950"},
}};

struct Family {
    std::string_view in_name;
    int sm;
};

// Longer names first: "GB200" holds "B200", "A100" holds "A10".
constexpr std::array<Family, 24> families = {{
    {"GB300", 103}, {"B300", 103}, {"GB200", 100}, {"B200", 100},  {"B100", 100}, {"GH200", 90},
    {"H200", 90},   {"H100", 90},  {"H800", 90},   {"H20", 90},    {"A100", 80},  {"A800", 80},
    {"A30", 80},    {"V100", 70},  {"P100", 60},   {"L40", 89},    {"L4", 89},    {"RTX 40", 89},
    {"A40", 86},    {"A10", 86},   {"A6000", 86},  {"RTX 30", 86}, {"T4", 75},    {"RTX 20", 75},
}};

struct Generation {
    int from_sm;
    double gb_per_s;
};

// One NVLink of generation 5 down to 1 as `nvidia-smi nvlink -s` shows it; the GA10x chips have links half as
// wide as those of GA100.
constexpr std::array<Generation, 6> generations = {
    {{100, 53.125}, {90, 26.5625}, {86, 14.0625}, {80, 25}, {70, 25.78125}, {60, 20}}};

struct Xeon {
    std::string_view in_name;
    std::string_view model;
};

// Processors of Intel's family 6 whose name tells their generation.
constexpr std::array<Xeon, 15> xeons = {{
    {"Granite Rapids", "173"},
    {"Emerald Rapids", "207"},
    {"Sapphire Rapids", "143"},
    {"Ice Lake", "106"},
    {"Cascade Lake", "85"},
    {"Skylake", "85"},
    {"Broadwell", "79"},
    {"Platinum 85", "207"},
    {"Platinum 84", "143"},
    {"Platinum 83", "106"},
    {"Platinum 82", "85"},
    {"Platinum 81", "85"},
    {"Gold 64", "143"},
    {"Gold 63", "106"},
    {"E5-26", "79"},
}};

bool holds(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

// "GenuineIntel family 6 model 143", as processor_text() writes it.
std::optional<Processor> own_text(std::string_view text) {
    const auto family = text.find(" family ");
    const auto model = text.find(" model ");
    if (family == std::string_view::npos || model == std::string_view::npos || model < family)
        return std::nullopt;
    return Processor{"x86_64", std::string(text.substr(0, family)),
                     std::string(text.substr(family + 8, model - family - 8)),
                     std::string(text.substr(model + 7))};
}

}  // namespace

const Product* product(long vendor, long device) {
    for (const Product& known : products) {
        if (known.vendor == vendor && known.device == device) return &known;
    }
    return nullptr;
}

const Product* product(std::string_view model) {
    for (const Product& known : products) {
        if (known.model == model) return &known;
    }
    return nullptr;
}

int sm_of_model(std::string_view model) {
    if (const Product* known = product(model); known != nullptr) return known->gcn.empty() ? known->sm : 0;
    for (const Family& family : families) {
        if (holds(model, family.in_name)) return family.sm;
    }
    return 0;
}

int sm_of_nvlink(double gb_per_s) {
    int found = 0;
    for (const Generation& generation : generations) {
        if (std::abs(generation.gb_per_s - gb_per_s) > 0.01) continue;
        if (found != 0) return 0;
        found = generation.from_sm;
    }
    return found;
}

double nvlink_gb_per_s(int sm) {
    for (const Generation& generation : generations) {
        if (sm >= generation.from_sm) return generation.gb_per_s;
    }
    return 25;
}

// AMD's data sheets count both directions: 92 GB/s a link for MI50, MI60 and MI100, 100 for MI200, 128 for
// MI300, 153.6 for MI350.
double xgmi_gb_per_s(std::string_view architecture) {
    if (architecture == "gfx90a") return 50;
    if (architecture.substr(0, 5) == "gfx94") return 64;
    if (architecture.substr(0, 5) == "gfx95") return 76.8;
    return 46;
}

std::string gfx_name(std::string_view gcn) {
    if (gcn.substr(0, 3) == "gfx") gcn.remove_prefix(3);
    return fmt::format("gfx{}", gcn == "910" ? "90a" : gcn.substr(0, 16));
}

std::string processor_text(const Processor& processor) {
    if (processor.vendor.empty()) return processor.arch;
    if (processor.family.empty() || processor.model.empty()) return processor.vendor;
    return fmt::format("{} family {} model {}", processor.vendor, processor.family, processor.model);
}

std::optional<Processor> processor_of(std::string_view text) {
    if (auto own = own_text(text)) return own;
    if (holds(text, "Grace") || holds(text, "Neoverse") || holds(text, "Ampere") || text == "arm64")
        return Processor{"arm64", "", "", ""};
    if (holds(text, "POWER") || text == "ppc64") return Processor{"ppc64", "", "", ""};
    // NCCL looks no further than the vendor. The family is that of Zen 3 and 4, as NCCL computes it.
    if (holds(text, "AMD")) return Processor{"x86_64", "AuthenticAMD", "175", "1"};
    if (!holds(text, "Intel")) return std::nullopt;
    // NCCL counts on 10 GB/s between sockets for model 85, more for later ones: the careful guess.
    std::string_view model = "85";
    for (const Xeon& xeon : xeons) {
        if (holds(text, xeon.in_name)) {
            model = xeon.model;
            break;
        }
    }
    return Processor{"x86_64", "GenuineIntel", "6", std::string(model)};
}

}  // namespace sidestep::topology::nccl_xml
