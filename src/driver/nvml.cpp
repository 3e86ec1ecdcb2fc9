#include "driver/nvml.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/try.hpp"
#include "driver/dynamic_library.hpp"
#include "driver/nvml_abi.hpp"

namespace sidestep::driver {

namespace nvml_abi {
namespace {

Result<void> bind_functions(const DynamicLibrary& library, Functions& functions) {
#define SIDESTEP_NVML_BIND(member, symbol, arguments) SIDESTEP_CHECK(library.bind(functions.member, symbol));
    SIDESTEP_NVML_REQUIRED(SIDESTEP_NVML_BIND)
#undef SIDESTEP_NVML_BIND
#define SIDESTEP_NVML_BIND(member, symbol, arguments) library.bind_optional(functions.member, symbol);
    SIDESTEP_NVML_OPTIONAL(SIDESTEP_NVML_BIND)
#undef SIDESTEP_NVML_BIND
    library.bind_optional(functions.error_string, "nvmlErrorString");
    return {};
}

// Calls a function that may be missing.
template <typename Function, typename... Arguments>
Return call(Function* function, Arguments... arguments) {
    return function != nullptr ? function(arguments...) : error_function_not_found;
}

// The text in a buffer that a driver filled and may not have ended with a zero.
template <std::size_t size>
std::string text_of(const char (&buffer)[size]) {
    return {buffer, ::strnlen(buffer, size)};
}

// The bus id as sysfs writes it, or nothing where the driver fills the numbers with ones: it does so
// for NVSwitches that a virtual machine, or one tray of an NVL72, does not see.
std::string bus_id_of(const PciInfo& pci) {
    if (pci.domain == 0xffffffffU || pci.bus > 0xffU || pci.device > 0x1fU) return {};
    return fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
}

// A field's value as a number; -1 where it was not given.
double number_of(const FieldValue& field) {
    if (field.result != success) return -1;
    switch (field.type) {
        case type_double:
            return field.value.real;
        case type_unsigned_int:
            return field.value.unsigned_int;
        case type_unsigned_long:
            return static_cast<double>(field.value.unsigned_long);
        case type_unsigned_long_long:
            return static_cast<double>(field.value.unsigned_long_long);
        case type_signed_long_long:
            return static_cast<double>(field.value.signed_long_long);
        case type_signed_int:
            return field.value.signed_int;
        case type_unsigned_short:
            return field.value.unsigned_short;
        default:
            return -1;
    }
}

class LoadedNvml final : public Nvml {
public:
    LoadedNvml(DynamicLibrary library, Functions functions)
        : library_(std::move(library)), functions_(functions) {}
    LoadedNvml(const LoadedNvml&) = delete;
    LoadedNvml& operator=(const LoadedNvml&) = delete;
    ~LoadedNvml() override {
        if (initialised_) functions_.shutdown();
    }

    Result<void> initialise();

    std::string driver_version() const override;
    Result<int> gpu_count() const override;
    Result<NvmlGpu> gpu(int index) const override;
    Result<std::vector<NvmlLink>> links(int index) const override;
    Result<P2pStatus> p2p(int from, int to, P2pCapability capability) const override;
    Result<CommonAncestor> common_ancestor(int a, int b) const override;
    Result<NvmlFabric> fabric(int index) const override;
    Result<NvmlCounters> counters(int index) const override;
    Result<bool> confidential_computing() const override;

private:
    Error failure(const char* what, Return code, const std::string& where) const;
    Result<Device> device(int index) const;
    double field(Device device, unsigned int id, unsigned int scope) const;
    void read_bus_facts(Device device, NvmlGpu& gpu) const;
    void read_modes(Device device, NvmlGpu& gpu) const;
    int link_count(Device device) const;
    bool link_active(Device device, unsigned int link, bool by_field) const;
    NvmlLink link(Device device, unsigned int number, bool by_field) const;

    DynamicLibrary library_;
    Functions functions_;
    bool initialised_ = false;
};

Error LoadedNvml::failure(const char* what, Return code, const std::string& where) const {
    const char* words = functions_.error_string != nullptr ? functions_.error_string(code) : nullptr;
    const bool refused = code == error_not_supported || code == error_function_not_found;
    return Error{
        refused ? ErrorCode::unsupported : ErrorCode::device_error,
        fmt::format("NVML cannot {}: {} (code {})", what, words != nullptr ? words : "no words", code), where,
        ""};
}

Result<void> LoadedNvml::initialise() {
    const Return code = functions_.init();
    if (code != success) {
        Error error = failure("start", code, library_.name());
        error.code = ErrorCode::unsupported;
        error.hint = "load the NVIDIA kernel driver, and see that nvidia-smi works here";
        return error;
    }
    initialised_ = true;
    return {};
}

std::string LoadedNvml::driver_version() const {
    char version[80] = {};
    if (call(functions_.driver_version, version, unsigned{sizeof version}) != success) return {};
    return text_of(version);
}

Result<int> LoadedNvml::gpu_count() const {
    unsigned int count = 0;
    const Return code = functions_.device_count(&count);
    if (code != success) return failure("count the GPUs", code, library_.name());
    return static_cast<int>(count);
}

Result<Device> LoadedNvml::device(int index) const {
    if (index < 0) {
        return Error{ErrorCode::invalid_argument, fmt::format("there is no GPU {}", index), library_.name(),
                     ""};
    }
    Device device = nullptr;
    const Return code = functions_.device_by_index(static_cast<unsigned int>(index), &device);
    if (code != success) return failure("open the GPU", code, fmt::format("gpu:{}", index));
    return device;
}

Result<NvmlGpu> LoadedNvml::gpu(int index) const {
    SIDESTEP_TRY(const Device handle, device(index));
    NvmlGpu gpu;
    PciInfo pci = {};
    const Return code = functions_.device_pci(handle, &pci);
    if (code != success) return failure("read the PCI address", code, fmt::format("gpu:{}", index));
    gpu.bus_id = bus_id_of(pci);

    char name[96] = {};
    if (functions_.device_name(handle, name, sizeof name) == success) gpu.name = text_of(name);
    char uuid[96] = {};
    if (call(functions_.device_uuid, handle, uuid, unsigned{sizeof uuid}) == success)
        gpu.uuid = text_of(uuid);
    Memory memory = {};
    if (call(functions_.device_memory, handle, &memory) == success) gpu.memory = memory.total;
    Bar1Memory bar1 = {};
    if (call(functions_.device_bar1, handle, &bar1) == success) gpu.bar1 = bar1.total;
    int major = 0;
    int minor = 0;
    if (call(functions_.device_cc, handle, &major, &minor) == success) {
        gpu.cc_major = major;
        gpu.cc_minor = minor;
    }
    read_bus_facts(handle, gpu);
    read_modes(handle, gpu);
    return gpu;
}

void LoadedNvml::read_bus_facts(Device handle, NvmlGpu& gpu) const {
    const auto read = [&](auto* function, int& into) {
        unsigned int number = 0;
        if (call(function, handle, &number) == success) into = static_cast<int>(number);
    };
    read(functions_.pcie_generation, gpu.pcie_generation);
    read(functions_.pcie_width, gpu.pcie_width);
    read(functions_.pcie_generation_now, gpu.pcie_generation_now);
    read(functions_.pcie_width_now, gpu.pcie_width_now);
    unsigned int replays = 0;
    if (call(functions_.pcie_replays, handle, &replays) == success) gpu.pcie_replays = replays;
    unsigned long nodes = 0;
    if (call(functions_.memory_affinity, handle, 1U, &nodes, affinity_scope_node) == success && nodes != 0) {
        gpu.numa_node = __builtin_ctzl(nodes);
    }
    const double count = field(handle, field_c2c_count, 0);
    for (int link = 0; link < max_nvlinks && link < count; ++link) {
        const auto scope = static_cast<unsigned int>(link);
        if (field(handle, field_c2c_state, scope) != 1) continue;
        ++gpu.c2c_links;
        gpu.c2c_gb_per_s += std::max(0.0, field(handle, field_c2c_speed, scope)) / 1000;
    }
}

void LoadedNvml::read_modes(Device handle, NvmlGpu& gpu) const {
    unsigned int mig = 0;
    unsigned int pending = 0;
    if (call(functions_.mig_mode, handle, &mig, &pending) == success) gpu.mig = mig == 1;
    int mode = 0;
    const bool told = call(functions_.virtualization, handle, &mode) == success;
    if (told && mode >= 0 && mode <= static_cast<int>(NvmlVirtualization::host_vsga))
        gpu.virtualization = static_cast<NvmlVirtualization>(mode);
}

double LoadedNvml::field(Device device, unsigned int id, unsigned int scope) const {
    FieldValue value = {};
    value.field = id;
    value.scope = scope;
    return call(functions_.field_values, device, 1, &value) == success ? number_of(value) : -1;
}

int LoadedNvml::link_count(Device device) const {
    const double count = field(device, field_nvlink_count, 0);
    if (count >= 0) return count <= max_nvlinks ? static_cast<int>(count) : max_nvlinks;
    // An older driver: the links are counted until one is not there.
    int links = 0;
    int state = 0;
    while (links < max_nvlinks &&
           call(functions_.nvlink_state, device, static_cast<unsigned int>(links), &state) == success) {
        ++links;
    }
    return links;
}

// From compute capability 9.0 on the state is a field, before it is a function of its own. A sleeping
// link wakes when it is used.
bool LoadedNvml::link_active(Device device, unsigned int link, bool by_field) const {
    if (by_field) {
        const double state = field(device, field_nvlink_state, link);
        return state == 1 || state == 2;
    }
    int active = 0;
    return call(functions_.nvlink_state, device, link, &active) == success && active == 1;
}

NvmlLink LoadedNvml::link(Device device, unsigned int number, bool by_field) const {
    NvmlLink link;
    link.active = link_active(device, number, by_field);
    if (!link.active) return link;

    int type = -1;
    if (call(functions_.nvlink_remote_type, device, number, &type) == success) {
        if (type == remote_gpu) link.remote = NvlinkRemote::gpu;
        if (type == remote_ibm_npu) link.remote = NvlinkRemote::cpu;
        if (type == remote_switch) link.remote = NvlinkRemote::nvswitch;
    }
    PciInfo pci = {};
    if (call(functions_.nvlink_remote_pci, device, number, &pci) == success)
        link.remote_bus_id = bus_id_of(pci);

    double megabytes = field(device, field_nvlink_speed, number);
    if (megabytes <= 0) megabytes = field(device, field_nvlink_speed_common, 0);
    if (megabytes > 0) link.gb_per_s = megabytes / 1000;
    return link;
}

Result<std::vector<NvmlLink>> LoadedNvml::links(int index) const {
    SIDESTEP_TRY(const Device handle, device(index));
    std::vector<NvmlLink> links;
    int major = 0;
    int minor = 0;
    const bool by_field = call(functions_.device_cc, handle, &major, &minor) == success && major >= 9;
    const int count = link_count(handle);
    for (int i = 0; i < count; ++i) links.push_back(link(handle, static_cast<unsigned int>(i), by_field));
    return links;
}

Result<P2pStatus> LoadedNvml::p2p(int from, int to, P2pCapability capability) const {
    SIDESTEP_TRY(const Device a, device(from));
    SIDESTEP_TRY(const Device b, device(to));
    int status = 0;
    const Return code = call(functions_.p2p_status, a, b, static_cast<int>(capability), &status);
    if (code != success)
        return failure("tell the peer status", code, fmt::format("gpu:{} to gpu:{}", from, to));
    if (status < 0 || status > static_cast<int>(P2pStatus::unknown)) return P2pStatus::unknown;
    return static_cast<P2pStatus>(status);
}

Result<CommonAncestor> LoadedNvml::common_ancestor(int first, int second) const {
    SIDESTEP_TRY(const Device a, device(first));
    SIDESTEP_TRY(const Device b, device(second));
    int level = 0;
    const Return code = call(functions_.common_ancestor, a, b, &level);
    if (code != success) {
        return failure("tell the common ancestor", code, fmt::format("gpu:{} and gpu:{}", first, second));
    }
    for (const auto known :
         {CommonAncestor::internal, CommonAncestor::single_switch, CommonAncestor::several_switches,
          CommonAncestor::host_bridge, CommonAncestor::numa_node}) {
        if (level <= static_cast<int>(known)) return known;
    }
    return CommonAncestor::system;
}

Result<NvmlFabric> LoadedNvml::fabric(int index) const {
    SIDESTEP_TRY(const Device handle, device(index));
    FabricInfo info = {};
    info.version = fabric_info_version;
    const Return code = call(functions_.fabric_info, handle, &info);
    if (code != success) return failure("tell the state of the fabric", code, fmt::format("gpu:{}", index));
    NvmlFabric fabric;
    if (info.state <= static_cast<unsigned char>(FabricState::completed))
        fabric.state = static_cast<FabricState>(info.state);
    fabric.status = info.status;
    for (const unsigned char byte : info.cluster_uuid) fabric.cluster_uuid += fmt::format("{:02x}", byte);
    fabric.clique = info.clique;
    fabric.health = info.health;
    return fabric;
}

Result<NvmlCounters> LoadedNvml::counters(int index) const {
    SIDESTEP_TRY(const Device handle, device(index));
    NvmlCounters counters;
    unsigned long long number = 0;
    if (call(functions_.ecc_errors, handle, ecc_corrected, ecc_since_load, &number) == success)
        counters.ecc_corrected = number;
    if (call(functions_.ecc_errors, handle, ecc_uncorrected, ecc_since_load, &number) == success)
        counters.ecc_uncorrected = number;
    unsigned int by_corrected = 0;
    unsigned int by_uncorrected = 0;
    unsigned int pending = 0;
    unsigned int failed = 0;
    if (call(functions_.remapped_rows, handle, &by_corrected, &by_uncorrected, &pending, &failed) ==
        success) {
        counters.remapped_rows = by_corrected + by_uncorrected;
        counters.remap_pending = pending != 0;
        counters.remap_failed = failed != 0;
    }
    if (call(functions_.slowed_by, handle, &number) == success) counters.slowed_by = number;
    const int count = link_count(handle);
    const auto sum = [&](int counter) -> NvmlCounters::Count {
        NvmlCounters::Count all;
        for (int link = 0; link < count; ++link)
            if (call(functions_.nvlink_errors, handle, static_cast<unsigned int>(link), counter, &number) ==
                success)
                all = all.value_or(0) + number;
        return all;
    };
    counters.nvlink_crc_errors = sum(nvlink_crc_errors);
    counters.nvlink_replays = sum(nvlink_replays);
    counters.nvlink_recoveries = sum(nvlink_recoveries);
    return counters;
}

Result<bool> LoadedNvml::confidential_computing() const {
    ConfidentialState state = {};
    const Return code = call(functions_.confidential_state, &state);
    if (code != success) return failure("tell the confidential computing mode", code, library_.name());
    return state.feature == 1;
}

}  // namespace
}  // namespace nvml_abi

Result<NvmlCounters> Nvml::counters(int) const {
    return Error{ErrorCode::unsupported, "NVML's counters are not told", "", ""};
}

Result<std::unique_ptr<Nvml>> load_nvml(const std::string& library) {
    auto opened = DynamicLibrary::open(library);
    if (!opened.ok()) {
        Error error = opened.error();
        if (error.code == ErrorCode::not_found) error.message += ": no NVIDIA driver";
        error.code = ErrorCode::unsupported;
        return error;
    }
    nvml_abi::Functions functions;
    SIDESTEP_CHECK(nvml_abi::bind_functions(*opened, functions));
    auto nvml = std::make_unique<nvml_abi::LoadedNvml>(std::move(*opened), functions);
    SIDESTEP_CHECK(nvml->initialise());
    return std::unique_ptr<Nvml>(std::move(nvml));
}

// NVLink 1 to 5: 20, 25, 25, 26.5625 and 53.125 GB/s a link as `nvidia-smi nvlink -s` shows them (the
// nominal figures of the last two are 25 and 50). 8.6 has four links of 14.0625 (GA102 whitepaper).
double nvlink_gb_per_s(int cc_major, int cc_minor) {
    switch (cc_major) {
        case 6:
            return cc_minor == 0 ? 20 : 0;
        case 7:
            return 25;
        case 8:
            return cc_minor == 0 ? 25 : cc_minor == 6 ? 14.0625 : 0;
        case 9:
            return 26.5625;
        case 10:
            return 53.125;
        default:
            return 0;
    }
}

}  // namespace sidestep::driver
