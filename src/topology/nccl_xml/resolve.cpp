// Finds the far ends of the links of a file, and what follows from the rest of it.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "base/try.hpp"
#include "topology/link_rates.hpp"
#include "topology/nccl_xml/draft.hpp"
#include "topology/nccl_xml/values.hpp"
#include "topology/nccl_xml/xml_parser.hpp"

namespace sidestep::topology::nccl_xml {

namespace {

constexpr int no_machine = -1;

// The links between two devices, as both of them list it.
struct Told {
    DeviceId low = 0;
    DeviceId high = 0;
    LinkKind kind = LinkKind::nvlink;
    long from_low = 0;
    long from_high = 0;
    std::size_t line = 0;
    std::string target;

    auto key() const { return std::tuple(low, high, kind); }
};

class Resolver {
public:
    explicit Resolver(Draft& draft) : draft_(draft) {}

    Result<void> far_ends();
    void switch_links();
    void bridge_rates();
    void socket_links();

private:
    static std::string key(int node, const std::string& bus_id) { return fmt::format("{}|{}", node, bus_id); }
    Result<DeviceId> far_end(const FarEnd& end);
    DeviceId nvswitch(const FarEnd& end);
    Result<void> join(const Told& told);
    const Device& device(DeviceId id) const { return draft_.parts.devices[id]; }

    Draft& draft_;
    std::unordered_map<std::string, DeviceId> ends_;  // GPUs and NVSwitches, by machine and bus id
};

DeviceId Resolver::nvswitch(const FarEnd& end) {
    Device made{DeviceKind::nvswitch};
    made.bus_id = end.target;
    made.model = end.kind == LinkKind::nvlink ? "NVIDIA NVSwitch" : "";
    // A hidden switch stands for all of them: for those of a rack, where the file holds several machines.
    made.node = end.target.empty() && draft_.hosts > 1 ? no_machine : device(end.gpu).node;
    const auto [known, is_new] = ends_.emplace(key(made.node, made.bus_id), 0);
    if (is_new) known->second = draft_.add(std::move(made), {static_cast<std::uint32_t>(end.line)});
    return known->second;
}

Result<DeviceId> Resolver::far_end(const FarEnd& end) {
    if (end.target.empty()) return nvswitch(end);
    const auto known = ends_.find(key(device(end.gpu).node, end.target));
    if (known != ends_.end()) return known->second;
    if (is_class(end.pci_class, display_class) || is_class(end.pci_class, accelerator_class)) {
        return at_line(end.line, tag_text(to_string(end.kind), "target", end.target),
                       "leads to a GPU that is not in the file",
                       "NCCL leaves GPUs out that a job did not use: let all take part in the dump, or take "
                       "the line out");
    }
    // NCCL too takes what it cannot see for an NVSwitch.
    return nvswitch(end);
}

Result<void> Resolver::far_ends() {
    for (DeviceId id = 0; id < draft_.parts.devices.size(); ++id) {
        if (device(id).kind == DeviceKind::gpu || device(id).kind == DeviceKind::nvswitch)
            ends_.emplace(key(device(id).node, device(id).bus_id), id);
    }
    std::vector<Told> all;
    all.reserve(draft_.far_ends.size());
    for (const FarEnd& end : draft_.far_ends) {
        SIDESTEP_TRY(const DeviceId far, far_end(end));
        const bool up = end.gpu < far;
        all.push_back({up ? end.gpu : far, up ? far : end.gpu, end.kind, up ? end.count : 0,
                       up ? 0 : end.count, end.line, end.target});
    }
    std::stable_sort(all.begin(), all.end(), [](const Told& a, const Told& b) { return a.key() < b.key(); });
    for (std::size_t at = 0; at < all.size();) {
        Told sum = all[at];
        for (++at; at < all.size() && all[at].key() == sum.key(); ++at) {
            sum.from_low += all[at].from_low;
            sum.from_high += all[at].from_high;
            sum.line = all[at].line;
        }
        SIDESTEP_CHECK(join(sum));
    }
    return {};
}

Result<void> Resolver::join(const Told& told) {
    const std::string tag = tag_text(to_string(told.kind), "target", told.target);
    const bool two_gpus = device(told.low).kind == device(told.high).kind;
    const double rate = std::max(draft_.about[told.low].link_rate, draft_.about[told.high].link_rate);
    long count = told.from_low + told.from_high;
    if (two_gpus && told.from_low != told.from_high) {
        // NCCL counts either direction for itself; a link of ours goes both ways.
        const long less = std::min(told.from_low, told.from_high);
        count = less > 0 ? less : count;
        draft_.notes.add("line {}: {}: {} and {} tell of {} and {} links to each other; counted: {}",
                         told.line, tag, device(told.low).bus_id, device(told.high).bus_id, told.from_low,
                         told.from_high, count);
    } else if (two_gpus) {
        count = told.from_low;
    }
    if (count > widest)
        return at_line(told.line, tag, fmt::format("makes {} links in all, more than {}", count, widest));
    draft_.parts.links.push_back({told.low, told.high, told.kind, static_cast<int>(count),
                                  static_cast<double>(count) * rate, nvlink_latency_us});
    return {};
}

// Broadcom's switches have links of their own between each other.
void Resolver::switch_links() {
    std::unordered_map<std::string, DeviceId> switches;
    for (DeviceId id = 0; id < draft_.parts.devices.size(); ++id) {
        if (device(id).kind == DeviceKind::pcie_switch)
            switches.emplace(key(device(id).node, device(id).bus_id), id);
    }
    std::unordered_map<DeviceId, Link> up;
    for (const Link& link : draft_.parts.links) {
        if (link.kind == LinkKind::pcie && device(link.a).kind == DeviceKind::pcie_switch)
            up.emplace(link.a, link);
    }
    std::vector<std::pair<DeviceId, DeviceId>> pairs;
    for (const SwitchLink& link : draft_.switch_links) {
        const auto known = switches.find(key(device(link.from).node, link.target));
        if (known == switches.end() || device(link.from).kind != DeviceKind::pcie_switch) {
            draft_.notes.add("line {}: {}: no two switches of this file; left out", link.line,
                             tag_text("pcilink", "target", link.target));
            continue;
        }
        if (up[link.from].b == known->second || up[known->second].b == link.from) continue;
        pairs.emplace_back(std::min(link.from, known->second), std::max(link.from, known->second));
    }
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    for (const auto& [a, b] : pairs) {
        Link link = up[a].gb_per_s < up[b].gb_per_s ? up[a] : up[b];
        link.a = a;
        link.b = b;
        if (a != b) draft_.parts.links.push_back(link);
    }
}

// The mesh of a processor carries what its PCIe lanes bring, as in join_host_bridge(). A bridge below which
// nothing is left is joined to nothing.
void Resolver::bridge_rates() {
    constexpr int max_lanes = 65536;
    constexpr double max_gb_per_s = 1e7;
    std::vector<Link>& links = draft_.parts.links;
    std::unordered_map<DeviceId, std::pair<int, double>> below;
    for (const Link& link : links) {
        if (device(link.b).kind != DeviceKind::host_bridge) continue;
        auto& [lanes, rate] = below[link.b];
        lanes = std::min(lanes + link.width, max_lanes);
        rate = std::min(rate + link.gb_per_s, max_gb_per_s);
    }
    for (Link& link : links) {
        if (device(link.a).kind != DeviceKind::host_bridge) continue;
        std::tie(link.width, link.gb_per_s) = below[link.a];
    }
    std::erase_if(links, [](const Link& link) { return link.width == 0; });
}

void Resolver::socket_links() {
    std::vector<std::vector<DeviceId>> cpus(draft_.hosts);
    for (DeviceId id = 0; id < draft_.parts.devices.size(); ++id) {
        if (device(id).kind == DeviceKind::cpu) cpus[static_cast<std::size_t>(device(id).node)].push_back(id);
    }
    for (const auto& of_host : cpus) {
        for (std::size_t i = 0; i < of_host.size(); ++i) {
            for (std::size_t j = i + 1; j < of_host.size(); ++j) {
                draft_.parts.links.push_back({of_host[i], of_host[j], LinkKind::socket, 1,
                                              assumed_socket_gb_per_s, socket_latency_us});
            }
        }
    }
}

}  // namespace

Result<void> resolve(Draft& draft) {
    Resolver resolver(draft);
    SIDESTEP_CHECK(resolver.far_ends());
    resolver.switch_links();
    resolver.bridge_rates();
    resolver.socket_links();
    number_devices(draft);
    draft.parts.notes = draft.notes.take();
    return {};
}

}  // namespace sidestep::topology::nccl_xml
