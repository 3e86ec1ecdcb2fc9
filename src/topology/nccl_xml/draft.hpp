// A topology file as it was read: devices and links in the order of the file, with names, numbers and the far
// ends of NVLinks still open.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep::topology::nccl_xml {

// Values above are mistakes in a file, not machines.
constexpr long widest = 4096;           // PCIe lanes, NVLinks of one pair
constexpr long highest_number = 65535;  // NVML's of a GPU, a NUMA node's, ...
constexpr long highest_c2c_mb_per_s = 1'000'000;
constexpr std::size_t max_cpus = 4096;
constexpr std::size_t max_cpus_of_a_host = 256;  // every two are joined

// One <nvlink> or <xgmi>.
struct FarEnd {
    DeviceId gpu = 0;
    LinkKind kind = LinkKind::nvlink;
    std::string target;     // a bus id; empty: hidden
    std::string pci_class;  // tclass, may be empty
    int count = 0;
    std::size_t line = 0;
};

// One <pcilink>.
struct SwitchLink {
    DeviceId from = 0;
    std::string target;
    std::size_t line = 0;
};

// Notes, of which a broken file would otherwise have millions.
class Notes {
public:
    // As fmt::format(); what is left out is not even formatted.
    template <typename... Arguments>
    void add(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
        if (notes_.size() < max)
            notes_.push_back(fmt::format(text, std::forward<Arguments>(arguments)...));
        else
            ++left_out_;
    }
    // All of them, the last one counting those that are left out.
    std::vector<std::string> take();

private:
    static constexpr std::size_t max = 100;
    std::vector<std::string> notes_;
    std::size_t left_out_ = 0;
};

struct Draft {
    // By position: the same as parts.devices.
    struct About {
        std::uint32_t line = 0;
        int wanted = -1;       // the number the file gives it
        std::string name;      // of a network card
        double link_rate = 0;  // of one NVLink or Infinity Fabric link
    };

    Topology::Parts parts;
    std::vector<About> about;
    std::vector<FarEnd> far_ends;
    std::vector<SwitchLink> switch_links;
    std::size_t hosts = 0;  // machines; Device::node counts them
    Notes notes;

    DeviceId add(Device device, About about);
};

// Resolves what is open. Afterwards the parts are complete.
Result<void> resolve(Draft& draft);

// Numbers and names the devices; the last thing resolve() does.
void number_devices(Draft& draft);

// Reads a file into a draft.
Result<Draft> read_draft(std::string_view text);

// Notes what a file of a cloud vendor mostly lacks: GPUs, or NVLinks and who lends them.
void note_what_is_missing(Topology::Parts& parts);

// Lends NVSwitches, NVLinks, GPU names and memory of `from` to `parts`.
Result<void> overlay(Topology::Parts& parts, const Topology& from);

}  // namespace sidestep::topology::nccl_xml
