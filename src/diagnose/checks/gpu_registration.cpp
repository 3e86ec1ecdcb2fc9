// Whether a network card can be given GPU memory, how it writes there, and how far it is.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "diagnose/checks/gpu_direct.hpp"
#include "diagnose/checks/gpu_pairs.hpp"
#include "diagnose/checks/looks.hpp"
#include "diagnose/checks/pci_distance.hpp"
#include "diagnose/checks/process_facts.hpp"
#include "diagnose/checks/rdma_cards.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

namespace {

// What MLNX_OFED and DOCA show of a registered client for GPU memory.
constexpr const char* peer_clients[] = {"/sys/kernel/mm/memory_peers/nv_mem/version",
                                        "/sys/kernel/mm/memory_peers/nv_mem_nc/version"};

struct Peermem {
    bool loaded = false;
    Seen seen;
};

Peermem peermem(const Evidence& evidence) {
    const topology::Fact module = topology::nvidia_peermem(evidence.files);
    if (module.known()) return {true, {module.source, module.value}};
    for (const char* path : peer_clients) {
        if (const auto version = evidence.files.line(path)) return {true, {path, *version}};
    }
    return {false, {module.source, "does not exist"}};
}

void see_dma_buf_of_cards(const Evidence& evidence, Outcome& outcome) {
    for (const driver::VerbsDevice& device : evidence.verbs.devices)
        outcome.saw(fmt::format("ibv_reg_dmabuf_mr({})", device.name),
                    device.opens ? device.dma_buf_words : device.reason);
    if (!evidence.verbs.loaded) outcome.saw("libibverbs.so.1", evidence.verbs.reason);
}

void see_dma_buf_of_gpus(const Evidence& evidence, Outcome& outcome) {
    for (const driver::CudaGpuFacts& gpu : evidence.cuda.gpus) {
        const auto found = gpu.attributes.find("DMA_BUF_SUPPORTED");
        outcome.saw(fmt::format("CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED({})", gpu.bus_id),
                    found == gpu.attributes.end() ? "is not told" : std::to_string(found->second));
    }
    if (!evidence.cuda.loaded) outcome.saw("libcuda.so.1", evidence.cuda.reason);
}

// Where the card's PCI Express capability starts in its configuration space (capability 0x10; PCI Express
// base specification). nullopt where the space is cut or has none.
std::optional<std::size_t> express_capability(const std::string& space) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(space[at]); };
    constexpr std::size_t first_pointer = 0x34;
    constexpr unsigned express = 0x10;
    if (space.size() <= 64) return std::nullopt;
    std::set<std::size_t> been;  // a broken list may run in a circle
    for (std::size_t at = byte(first_pointer) & 0xfcU; at >= 64 && at + 10 <= space.size();
         at = byte(at + 1) & 0xfcU) {
        if (!been.insert(at).second) return std::nullopt;
        if (byte(at) == express) return at;
    }
    return std::nullopt;
}

constexpr unsigned relaxed_ordering_bit = 1U << 4;  // of the device control register, capability + 8

std::optional<unsigned> device_control(const driver::MachineFiles& files, const std::string& bus_id) {
    const auto space = files.text(fmt::format("/sys/bus/pci/devices/{}/config", bus_id), 4096);
    if (!space) return std::nullopt;
    const auto at = express_capability(*space);
    if (!at) return std::nullopt;
    return static_cast<unsigned char>((*space)[*at + 8]) | static_cast<unsigned char>((*space)[*at + 9]) << 8;
}

// A variable that tells a library not to ask for relaxed ordering.
std::optional<Seen> ordering_switched_off(const driver::MachineFiles& files) {
    const auto nccl = nccl_setting(files, "NCCL_IB_PCI_RELAXED_ORDERING");
    if (nccl && nccl->value == "0") return Seen{nccl->source, "NCCL_IB_PCI_RELAXED_ORDERING=0"};
    const auto environment = process_environment(files);
    if (!environment) return std::nullopt;
    const auto ucx = environment->find("UCX_IB_PCI_RELAXED_ORDERING");
    if (ucx == environment->end()) return std::nullopt;
    const bool off = ucx->second == "n" || ucx->second == "no" || ucx->second == "off" || ucx->second == "0";
    if (!off) return std::nullopt;
    return Seen{"/proc/self/environ", "UCX_IB_PCI_RELAXED_ORDERING=" + ucx->second};
}

std::vector<DeviceId> nic_devices(const Evidence& evidence) {
    std::vector<DeviceId> devices;
    for (const RdmaCard& card : rdma_cards(evidence)) {
        for (DeviceId id = 0; id < evidence.topology.devices().size(); ++id) {
            if (evidence.topology.device(id).bus_id == card.bus_id) devices.push_back(id);
        }
    }
    return devices;
}

}  // namespace

Outcome look_peermem(const Evidence& evidence) {
    if (const auto reason = no_gpu_and_card(evidence)) return does_not_apply(*reason);
    const Peermem module = peermem(evidence);
    if (module.loaded) {
        Outcome outcome = pass("nvidia-peermem is loaded");
        outcome.seen.push_back(module.seen);
        return outcome;
    }
    const auto gpus = every_gpu_has(evidence, "DMA_BUF_SUPPORTED");
    const auto cards = cards_take_dma_buf(evidence);
    Outcome outcome;
    if (gpus.value_or(false) && cards.value_or(false)) {
        outcome = pass("nvidia-peermem is not loaded; dma-buf does the same, and both sides have it");
    } else if (!gpus.value_or(true) || !cards.value_or(true)) {
        outcome = fail(
            "network cards cannot be given GPU memory: nvidia-peermem is not loaded, and dma-buf does not "
            "work");
    } else {
        outcome = warn("nvidia-peermem is not loaded, and whether dma-buf takes its place is not told");
    }
    outcome.seen.push_back(module.seen);
    see_dma_buf_of_gpus(evidence, outcome);
    see_dma_buf_of_cards(evidence, outcome);
    return outcome;
}

Outcome look_dma_buf_nic(const Evidence& evidence) {
    if (const auto reason = no_gpu_and_card(evidence)) return does_not_apply(*reason);
    const auto cards = cards_take_dma_buf(evidence);
    Outcome outcome;
    if (cards.value_or(false)) {
        outcome = pass("every RDMA card registers dma-buf memory");
    } else if (const Peermem module = peermem(evidence); module.loaded) {
        outcome = pass(
            cards ? "a card registers no dma-buf memory; nvidia-peermem takes its place"
                  : "whether the cards register dma-buf memory is not told; nvidia-peermem takes its place");
        outcome.seen.push_back(module.seen);
    } else if (cards) {
        outcome = warn("a card's driver registers no dma-buf memory");
    } else {
        outcome = unknown("whether the cards register dma-buf memory is not told");
        outcome.remedy =
            "Run the doctor where the cards can be opened (device files in /dev/infiniband, library "
            "libibverbs of rdma-core 34 or newer).";
    }
    see_dma_buf_of_cards(evidence, outcome);
    return outcome;
}

Outcome look_relaxed_ordering(const Evidence& evidence) {
    if (const auto reason = no_gpu_and_card(evidence)) return does_not_apply(*reason);
    if (const auto off = ordering_switched_off(evidence.files)) {
        Outcome outcome = warn("a variable keeps the cards from writing in relaxed order");
        outcome.seen.push_back(*off);
        outcome.remedy =
            "Take the variable away; the libraries then ask for relaxed ordering where the card has it.";
        outcome.command = fmt::format("unset {}", off->value.substr(0, off->value.find('=')));
        return outcome;
    }
    std::vector<std::string> clear;
    std::vector<std::string> hidden;
    Outcome outcome;
    for (const RdmaCard& card : rdma_cards(evidence)) {
        const std::string path = fmt::format("/sys/bus/pci/devices/{}/config", card.bus_id);
        const auto control = device_control(evidence.files, card.bus_id);
        // The bit of a virtual function always reads 0; the function of the host's counts (PCI Express base
        // specification, single root I/O virtualisation).
        const bool telling = control && !card.virtual_function && !is_guest(evidence);
        const bool on = control && (*control & relaxed_ordering_bit) != 0;
        if (!on) (telling ? clear : hidden).push_back(card.bus_id);
        outcome.saw(path, control ? fmt::format("device control {:#06x}, relaxed ordering {}", *control,
                                                on ? "on" : "off")
                                  : "the first 64 bytes only: the rest is shown to root");
    }
    std::vector<Seen> seen = std::move(outcome.seen);
    if (!clear.empty()) {
        outcome = warn(fmt::format("relaxed ordering is switched off in {}", listed(clear)));
        outcome.command = fmt::format("setpci -s {} CAP_EXP+8.w=0010:0010", clear.front());
    } else if (!hidden.empty()) {
        outcome = unknown(
            "whether the cards may write in relaxed order is not shown to this user, or not in a virtual "
            "machine");
        outcome.remedy =
            "Run the doctor as root, on the host of a virtual machine, or look for RlxdOrd+ in the line "
            "DevCtl "
            "yourself.";
        outcome.command = fmt::format("lspci -s {} -vv | grep RlxdOrd", hidden.front());
    } else {
        outcome = pass("the cards may write in relaxed order");
    }
    outcome.seen = std::move(seen);
    return outcome;
}

Outcome look_gpu_nic_far(const Evidence& evidence) {
    if (const auto reason = no_gpu_and_card(evidence)) return does_not_apply(*reason);
    const std::vector<DeviceId> cards = nic_devices(evidence);
    if (cards.empty()) return does_not_apply("no RDMA card has a place of its own in the PCI tree");
    if (hides_tree(evidence)) return behind_hypervisor("network card");
    return judge_distances(evidence, cards, {"network card", PathClass::pxb});
}

}  // namespace sidestep::diagnose
