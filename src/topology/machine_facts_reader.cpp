#include "topology/machine_facts_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string_view>

namespace sidestep::topology {

namespace {

using driver::MachineFiles;

std::string device_folder(const std::string& bus_id) {
    return fmt::format("/sys/bus/pci/devices/{}", bus_id);
}

// The words of a text, cut at blanks and newlines.
std::vector<std::string> words(const std::string& text) {
    std::vector<std::string> all;
    std::string word;
    for (const char c : text) {
        if (c != ' ' && c != '\n' && c != '\t') {
            word += c;
        } else if (!word.empty()) {
            all.push_back(std::move(word));
            word.clear();
        }
    }
    if (!word.empty()) all.push_back(std::move(word));
    return all;
}

bool contains(const std::optional<std::string>& text, std::string_view part) {
    return text && text->find(part) != std::string::npos;
}

// The version of a loaded module. Built-in modules have no version there but do have the folder.
Fact module(const MachineFiles& files, const std::string& name) {
    const std::string folder = fmt::format("/sys/module/{}", name);
    if (const auto version = files.line(folder + "/version")) return {*version, folder + "/version"};
    return {files.exists(folder) ? "loaded" : "", folder};
}

}  // namespace

Fact kernel_release(const MachineFiles& files) {
    const std::string source = "/proc/sys/kernel/osrelease";
    return {files.line(source).value_or(""), source};
}

Fact kernel_argument(const MachineFiles& files, const std::string& name) {
    Fact fact{"", "/proc/cmdline"};
    for (const std::string& word : words(files.text(fact.source).value_or(""))) {
        if (word == name) fact.value = std::string(1, '1');  // not "1": GCC 12 warns of what it makes of that
        if (word.starts_with(name + "=")) fact.value = word.substr(name.size() + 1);
    }
    return fact;
}

Fact kernel_option(const MachineFiles& files, const std::string& option) {
    Fact fact{"", fmt::format("/boot/config-{}", kernel_release(files).value)};
    const auto config = files.text(fact.source, std::size_t{1} << 20);
    if (!config) return fact;
    fact.value = "n";
    for (const std::string& word : words(*config)) {
        if (word.rfind(option + "=", 0) == 0) fact.value = word.substr(option.size() + 1);
    }
    return fact;
}

Fact iommu_mode(const MachineFiles& files) {
    const std::string folder = "/sys/kernel/iommu_groups";
    if (!files.exists("/sys/kernel")) return {"", folder};
    std::set<std::string> modes;
    Fact fact{"", folder};
    const auto groups = files.names(folder);
    for (const std::string& group : groups) {
        const std::string path = fmt::format("{}/{}/type", folder, group);
        const std::string type = files.line(path).value_or("");
        if (type.empty()) continue;
        modes.insert(type == "identity" ? "pass-through" : "translating");
        fact.source = path + ": " + type;
    }
    if (groups.empty()) {
        fact.value = "off";
        fact.source = folder + " is empty";
    } else if (modes.size() == 1) {
        fact.value = *modes.begin();
    } else if (modes.size() > 1) {
        fact.value = "mixed";
        fact.source = folder + "/*/type";
    }
    return fact;
}

Fact iommu_group(const MachineFiles& files, const std::string& bus_id) {
    const std::string link = device_folder(bus_id) + "/iommu_group";
    const std::string target = files.real_path(link);
    return {target.empty() ? "" : target.substr(target.rfind('/') + 1), link};
}

Fact iommu_group_type(const MachineFiles& files, const std::string& bus_id) {
    const Fact group = iommu_group(files, bus_id);
    if (!group.known()) return {"", group.source};
    const std::string path = fmt::format("/sys/kernel/iommu_groups/{}/type", group.value);
    return {files.line(path).value_or(""), path};
}

Fact hypervisor(const MachineFiles& files) {
    const std::string xen = "/sys/hypervisor/type";
    if (const auto type = files.line(xen)) return {*type, xen};
    const std::string vendor_path = "/sys/class/dmi/id/sys_vendor";
    const std::string product_path = "/sys/class/dmi/id/product_name";
    const std::string vendor = files.line(vendor_path).value_or("");
    const std::string product = files.line(product_path).value_or("");
    const std::string cpuinfo = files.text("/proc/cpuinfo").value_or("");
    const auto flags = cpuinfo.find("flags");
    const std::string line =
        flags == std::string::npos ? "" : cpuinfo.substr(flags, cpuinfo.find('\n', flags) - flags);
    // The bit that CPUID leaf 1 sets in a guest; Linux prints it among the flags.
    if (line.find(" hypervisor") == std::string::npos) {
        if (line.empty()) return {"", "/proc/cpuinfo"};
        return {"none", "/proc/cpuinfo: no hypervisor flag"};
    }
    if (vendor.find("VMware") != std::string::npos) return {"vmware", vendor_path};
    if (vendor.find("Microsoft") != std::string::npos) return {"hyper-v", vendor_path};
    if (vendor.find("Amazon EC2") != std::string::npos) return {"nitro", vendor_path};
    if (vendor.find("Google") != std::string::npos) return {"kvm", vendor_path};
    if (vendor.find("QEMU") != std::string::npos || product.find("KVM") != std::string::npos)
        return {"kvm", vendor_path};
    return {"virtual machine", "/proc/cpuinfo: flag hypervisor"};
}

Fact container(const MachineFiles& files) {
    if (contains(files.text("/proc/version"), "gVisor") || files.exists("/proc/sentry-meminfo"))
        return {"gvisor", "/proc/version"};
    if (!process_variable(files, "KUBERNETES_SERVICE_HOST").empty())
        return {"kubernetes", "/proc/self/environ: KUBERNETES_SERVICE_HOST"};
    if (files.exists("/.dockerenv")) return {"docker", "/.dockerenv"};
    if (files.exists("/run/.containerenv")) return {"podman", "/run/.containerenv"};
    if (const auto kind = files.line("/run/systemd/container")) return {*kind, "/run/systemd/container"};
    const auto mounts = files.text("/proc/self/mountinfo");
    if (!mounts) return {"", "/proc/self/mountinfo"};
    if (contains(mounts, " / / ") && contains(mounts, " - overlay "))
        for (std::size_t at = 0; at < mounts->size();) {
            const std::size_t end = std::min(mounts->find('\n', at), mounts->size());
            const std::string line = mounts->substr(at, end - at);
            if (line.find(" / / ") != std::string::npos && line.find(" - overlay ") != std::string::npos)
                return {"container", "/proc/self/mountinfo: the root is an overlay"};
            at = end + 1;
        }
    return {"none", "/proc/self/mountinfo"};
}

Fact nvidia_driver(const MachineFiles& files) {
    Fact fact{"", "/proc/driver/nvidia/version"};
    // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ..."
    for (const std::string& word : words(files.line(fact.source).value_or(""))) {
        const bool version = !word.empty() && word.find_first_not_of("0123456789.") == std::string::npos &&
                             word.find('.') != std::string::npos;
        if (version && fact.value.empty()) fact.value = word;
    }
    if (fact.known()) return fact;
    return module(files, "nvidia");
}

Fact nvidia_driver_kind(const MachineFiles& files) {
    const std::string source = "/proc/driver/nvidia/version";
    const auto line = files.line(source);
    if (!line) return {"", source};
    return {contains(line, "Open Kernel Module") ? "open" : "closed", source};
}

Fact nvidia_peermem(const MachineFiles& files) {
    Fact fact = module(files, "nvidia_peermem");
    if (fact.known()) return fact;
    // The module of older driver packages.
    const Fact old = module(files, "nv_peer_mem");
    return old.known() ? old : fact;
}

Fact nvidia_fs(const MachineFiles& files) {
    const std::string source = "/proc/driver/nvidia-fs/version";
    // "version: 2.28"
    const auto line = words(files.line(source).value_or(""));
    if (!line.empty()) return {line.back(), source};
    return module(files, "nvidia_fs");
}

Fact kernel_p2pdma(const MachineFiles& files) {
    Fact built = kernel_option(files, "CONFIG_PCI_P2PDMA");
    if (built.known()) return {built.value == "y" ? "yes" : "no", built.source + ": CONFIG_PCI_P2PDMA"};
    // Symbols are listed for everyone, with addresses of zero; the file is long, so it is cut where it is
    // recorded. Only kernels with user mappings of peer memory (6.2) have this one.
    const std::string source = "/proc/kallsyms";
    const auto symbols = files.text(source, std::size_t{64} << 20);
    if (!symbols || symbols->empty()) return {"", source};
    return {contains(symbols, "p2pdma_pgmap_ops") ? "yes" : "no", source + ": p2pdma_pgmap_ops"};
}

std::optional<std::map<std::string, std::string>> process_environment(const MachineFiles& files) {
    const auto text = files.text("/proc/self/environ", std::size_t{1} << 20);
    if (!text) return std::nullopt;
    std::map<std::string, std::string> variables;
    for (std::size_t at = 0; at < text->size();) {
        const std::size_t end = std::min(text->find('\0', at), text->size());
        const std::string entry = text->substr(at, end - at);
        const auto equals = entry.find('=');
        // Of several with one name getenv() finds the first.
        if (equals != std::string::npos && equals > 0)
            variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
        at = end + 1;
    }
    return variables;
}

std::string process_variable(const MachineFiles& files, const std::string& name) {
    const auto all = process_environment(files);
    const auto found = all ? all->find(name) : decltype(all->end()){};
    return all && found != all->end() ? found->second : std::string();
}

std::vector<std::string> pci_walk(const MachineFiles& files, const std::string& bus_id) {
    std::string rest = files.real_path(device_folder(bus_id));
    const auto start = rest.rfind("/pci");
    if (start == std::string::npos) return {};
    rest = rest.substr(start + 1);
    std::vector<std::string> walk;
    for (std::size_t slash = rest.find('/'); slash != std::string::npos;) {
        const std::size_t next = rest.find('/', slash + 1);
        walk.push_back(rest.substr(slash + 1, next == std::string::npos ? next : next - slash - 1));
        slash = next;
    }
    return walk;
}

namespace {

unsigned byte_at(const std::string& text, std::size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
}
unsigned word_at(const std::string& text, std::size_t at) {
    return byte_at(text, at) | byte_at(text, at + 1) << 8;
}

constexpr unsigned acs_capability = 0x000d;
constexpr unsigned redirect_bits = 1U << 2 | 1U << 3 | 1U << 4;
constexpr std::size_t first_extended = 0x100;
constexpr std::size_t space_size = 4096;

}  // namespace

std::optional<AcsBits> acs_of(const MachineFiles& files, const std::string& port_bus_id) {
    const auto space = files.text(device_folder(port_bus_id) + "/config", space_size);
    if (!space || space->size() <= first_extended) return std::nullopt;
    AcsBits bits;
    std::set<std::size_t> been;  // a broken list may run in a circle
    for (std::size_t at = first_extended; at >= first_extended && at + 8 <= space->size();) {
        if (!been.insert(at).second) break;
        const unsigned low = word_at(*space, at);
        const unsigned high = word_at(*space, at + 2);
        if (low == acs_capability) {
            bits.control = word_at(*space, at + 6);
            bits.redirects = (word_at(*space, at + 4) & bits.control & redirect_bits) != 0;
            break;
        }
        at = high >> 4;
    }
    return bits;
}

namespace {

// By the groups that the kernel makes of devices an IOMMU cannot keep apart (pci_device_group() of its
// drivers/iommu/iommu.c): a device shares the group of the port above it unless access control is on there
// and at every port further up. So a device in another group than its port says "on"; two that share the
// groups of their ports, which differ, say "off"; one group for all says that a port further up has none, and
// nothing of these. Without an IOMMU there are no groups.
void infer_acs(const MachineFiles& files, const std::vector<std::string>& walk_a,
               const std::vector<std::string>& walk_b, std::size_t common, AcsBetween& between) {
    std::vector<std::string> groups;
    bool apart = false;  // a device is not in the group of its port
    for (const auto* walk : {&walk_a, &walk_b}) {
        if (common + 1 >= walk->size()) return;  // right below the common port: there is no port to ask
        const Fact port = iommu_group(files, (*walk)[common]);
        const Fact below = iommu_group(files, (*walk)[common + 1]);
        between.seen.push_back({port.known() ? port.value : "no group", port.source});
        between.seen.push_back({below.known() ? below.value : "no group", below.source});
        if (!port.known() || !below.known()) return;
        apart = apart || port.value != below.value;
        groups.push_back(below.value);
    }
    if (!apart && groups[0] == groups[1]) return;
    between.state = apart ? "on" : "off";
    between.how = "inferred";
}

}  // namespace

AcsBetween acs_between(const MachineFiles& files, const std::string& a, const std::string& b) {
    AcsBetween between;
    const auto walk_a = pci_walk(files, a);
    const auto walk_b = pci_walk(files, b);
    std::size_t common = 0;
    while (common < walk_a.size() && common < walk_b.size() && walk_a[common] == walk_b[common]) ++common;
    // Below one root port, and not the same device.
    if (common == 0 || common >= walk_a.size() || common >= walk_b.size()) return between;

    // The downstream ports of the switch at which the two part.
    bool all_read = true;
    for (const std::string& port : {walk_a[common], walk_b[common]}) {
        if (port == a || port == b) continue;
        const auto bits = acs_of(files, port);
        all_read = all_read && bits.has_value();
        if (!bits) continue;
        between.seen.push_back(
            {fmt::format("ACS control {:#06x}", bits->control), device_folder(port) + "/config"});
        if (bits->redirects) between.ports.push_back(port);
    }
    if (!between.ports.empty() || (all_read && !between.seen.empty())) {
        between.state = between.ports.empty() ? "off" : "on";
        between.how = "read";
        return between;
    }
    infer_acs(files, walk_a, walk_b, common, between);
    return between;
}

Bytes bar_size(const MachineFiles& files, const std::string& bus_id, int region) {
    const auto text = files.text(device_folder(bus_id) + "/resource");
    if (!text) return 0;
    std::size_t at = 0;
    for (int line = 0; line < region && at != std::string::npos; ++line) {
        at = text->find('\n', at);
        if (at != std::string::npos) ++at;
    }
    if (at == std::string::npos || at >= text->size()) return 0;
    char* end = nullptr;
    const Bytes start = std::strtoull(text->c_str() + at, &end, 16);
    const Bytes last = std::strtoull(end, nullptr, 16);
    return last > start ? last - start + 1 : 0;
}

Bytes bar_largest(const MachineFiles& files, const std::string& bus_id, int region) {
    // A mask in which bit n stands for 2^n MB.
    const auto text = files.line(fmt::format("{}/resource{}_resize", device_folder(bus_id), region));
    if (!text) return 0;
    const unsigned long long mask = std::strtoull(text->c_str(), nullptr, 16);
    if (mask == 0) return 0;
    return Bytes{1} << (20 + 63 - __builtin_clzll(mask));
}

}  // namespace sidestep::topology
