// Writing. What NCCL needs where: ncclTopoAddCpu, ncclTopoAddPci, ncclTopoAddGpu, ncclTopoAddNet and
// ncclTopoAddNvLinks in src/graph/topo.cc (2.30.7) fail without numaid, class, busid, link_speed and
// link_width; sm, dev and count and tclass of links are needed once a GPU is used. What NCCL finds out on the
// machine itself (affinity, gdr, guid, ...) is written only where it is known.
#include <sidestep/nccl_xml.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/try.hpp"
#include "topology/link_rates.hpp"
#include "topology/nccl_xml/attributes.hpp"
#include "topology/nccl_xml/draft.hpp"
#include "topology/nccl_xml/products.hpp"
#include "topology/nccl_xml/tree.hpp"
#include "topology/nccl_xml/values.hpp"
#include "topology/nccl_xml/xml_text.hpp"
#include "topology/parts_builder.hpp"

namespace sidestep {

namespace topology::nccl_xml {

namespace {

constexpr int deepest_tree = 60;                // NCCL and our reader walk it by recursion
constexpr std::size_t max_nccl_elements = 256;  // NCCL_TOPO_XML_MAX_NODES
constexpr std::string_view hidden = "fffffff:ffff:ff";

Error impossible(std::string message, std::string where, std::string hint = "") {
    return Error{ErrorCode::unsupported, std::move(message), std::move(where), std::move(hint)};
}

class Writer {
public:
    Writer(const Topology& topology, int version) : topology_(topology), tree_(topology), version_(version) {
        for (const Link& link : topology.links()) {
            const bool trunk = topology.device(link.a).kind == DeviceKind::nvswitch &&
                               topology.device(link.b).kind == DeviceKind::nvswitch;
            hides_switches_ = hides_switches_ || trunk;
        }
        int nameless = 0;
        for (const Device& device : topology.devices())
            nameless += device.kind == DeviceKind::nvswitch && !bus_id(device.bus_id) ? 1 : 0;
        one_nameless_switch_ = nameless == 1;
    }

    Result<std::string> write();

private:
    // One line below a <gpu>.
    struct Line {
        std::string tag;
        std::string target;
        std::string pci_class;
        auto key() const { return std::tie(tag, pci_class, target); }
        bool operator<(const Line& other) const { return key() < other.key(); }
    };
    using Lines = std::map<Line, long>;  // links

    void write_cpu(const Tree::Cpu& cpu);
    Result<void> write_pci(DeviceId id, int bridge, int depth);
    void write_pci_attributes(DeviceId id, const Link* up);
    Result<void> write_gpu(DeviceId id);
    Result<Lines> links_of(DeviceId gpu) const;
    std::optional<Line> line_to(const Link& link, DeviceId far) const;
    void write_pci_links(DeviceId id);
    void write_nic(DeviceId id);
    void write_net(DeviceId id);
    void write_bridge(int bridge) {
        if (bridge >= 0) text_.attribute(bridge_attribute, static_cast<long>(bridge));
    }

    // Writes the property of that name, else what `otherwise` gives, unless that is empty.
    void write_property(DeviceId id, std::string_view attribute, std::string_view otherwise = "");
    template <typename Names>
    void write_properties(DeviceId id, const Names& attributes) {
        for (const char* attribute : attributes) write_property(id, attribute);
    }
    std::string number_of(DeviceId id) const;
    std::string sm_text(DeviceId gpu) const;
    const Device& device(DeviceId id) const { return topology_.device(id); }
    DeviceId far_end(const Link& link, DeviceId id) const { return link.a == id ? link.b : link.a; }

    const Topology& topology_;
    const Tree tree_;
    const int version_;
    bool hides_switches_ = false;  // links between NVSwitches: the format knows a single one
    bool one_nameless_switch_ = false;
    std::optional<DeviceId> cpu_;  // that is being written
    XmlText text_;
};

// Whether a reader of ours takes that value of an attribute: properties may come from anywhere.
bool is_sensible(std::string_view attribute, std::string_view value) {
    if (!fits(value)) return false;
    if (attribute != "dev" && attribute != "sm" && attribute != "link_width") return true;
    const auto number = whole_number(value);
    if (value.empty() && attribute != "sm") return true;
    return number && *number >= (attribute == "dev" ? -1 : 0) &&
           *number <= (attribute == "link_width" ? widest : highest_number);
}

void Writer::write_property(DeviceId id, std::string_view attribute, std::string_view otherwise) {
    const std::string* value = find_property(device(id), attribute);
    if (value != nullptr && *value == absent) return;
    if (value != nullptr && !is_sensible(attribute, *value)) value = nullptr;
    if (value != nullptr) {
        text_.attribute(attribute, *value);
    } else if (!otherwise.empty()) {
        text_.attribute(attribute, otherwise);
    }
}

std::string Writer::number_of(DeviceId id) const {
    return device(id).index <= highest_number ? fmt::format("{}", device(id).index) : "";
}

Result<std::string> Writer::write() {
    if (tree_.cpus().size() > max_cpus_of_a_host) {
        return impossible(fmt::format("the machine has {} cpus, and a file holds up to {}",
                                      tree_.cpus().size(), max_cpus_of_a_host),
                          topology_.name());
    }
    text_.open("system");
    text_.attribute("version", static_cast<long>(version_));
    if (!topology_.name().empty()) text_.attribute("name", topology_.name());
    for (const Tree::Cpu& cpu : tree_.cpus()) {
        write_cpu(cpu);
        const bool several = cpu.bridges > 1;
        for (const Tree::Top& top : cpu.below)
            SIDESTEP_CHECK(write_pci(top.device, several ? top.bridge : -1, 1));
        text_.close();
    }
    text_.close();
    std::string text = std::move(text_.text());
    if (text_.elements() > max_nccl_elements) {
        text = fmt::format(
                   "<!-- {} elements: NCCL reads up to {}, unless it was built with a larger "
                   "NCCL_TOPO_XML_MAX_NODES -->\n",
                   text_.elements(), max_nccl_elements) +
               text;
    }
    return text;
}

void Writer::write_cpu(const Tree::Cpu& cpu) {
    text_.open("cpu");
    text_.attribute("numaid", static_cast<long>(cpu.numa_node));
    cpu_ = cpu.device;
    if (!cpu.device) return;
    const DeviceId id = *cpu.device;
    const auto known = [&](const char* attribute) { return find_property(device(id), attribute) != nullptr; };
    if (std::any_of(cpu_attributes.begin() + 1, cpu_attributes.end(), known)) {
        write_properties(id, cpu_attributes);
        return;
    }
    write_property(id, "affinity");
    // Nothing, where the model says nothing: NCCL then asks the processor it runs on.
    if (const auto processor = processor_of(device(id).model)) {
        text_.attribute("arch", processor->arch);
        if (processor->vendor.empty()) return;
        text_.attribute("vendor", processor->vendor);
        text_.attribute("familyid", processor->family);
        text_.attribute("modelid", processor->model);
    }
}

// NVLink or PCIe generation: the one that a link of that rate and width is of, else the next slower one.
int generation_of(const Link& link) {
    if (const auto exact = pcie_generation_of(link.gb_per_s, link.width)) return *exact;
    int generation = 6;
    while (generation > 1 && pcie_gb_per_s(generation, link.width) > link.gb_per_s) --generation;
    return generation;
}

void Writer::write_pci_attributes(DeviceId id, const Link* up) {
    text_.attribute("busid", tree_.bus_id(id));
    write_property(id, "class", usual_class(device(id)));
    const Product* known = device(id).kind == DeviceKind::gpu ? product(device(id).model) : nullptr;
    // Where no architecture tells the maker either.
    const bool of_amd = device(id).kind == DeviceKind::gpu && is_amd(device(id)) &&
                        find_property(device(id), "gcn") == nullptr && device(id).properties.count(gfx) == 0;
    const long vendor = known != nullptr ? known->vendor : of_amd ? amd : 0;
    write_property(id, "vendor", vendor == 0 ? "" : fmt::format("{:#06x}", vendor));
    write_property(id, "device", known == nullptr ? "" : fmt::format("{:#06x}", known->device));
    write_property(id, "subsystem_vendor");
    write_property(id, "subsystem_device");
    if (up != nullptr) {
        write_property(id, "link_speed", link_speed(generation_of(*up)));
        write_property(id, "link_width", fmt::format("{}", up->width));
        return;
    }
    // NCCL insists on both, and takes these for "not known".
    for (const auto& [attribute, unknown] : {std::pair{"link_speed", ""}, std::pair{"link_width", "0"}}) {
        const std::string* value = find_property(device(id), attribute);
        if (value != nullptr && *value == absent) continue;
        const bool told = value != nullptr && is_sensible(attribute, *value);
        text_.attribute(attribute, told ? std::string_view(*value) : unknown);
    }
}

Result<void> Writer::write_pci(DeviceId id, int bridge, int depth) {
    if (depth > deepest_tree) {
        return impossible(fmt::format("switches nest more than {} levels deep", deepest_tree),
                          device(id).name);
    }
    if (device(id).kind == DeviceKind::nic && find_property(device(id), virtual_card) != nullptr &&
        depth == 1) {
        text_.open("nic");
        write_bridge(bridge);
        write_net(id);
        text_.close();
        return {};
    }
    const Link* up = tree_.up(id);
    if (up != nullptr && up->width > widest)
        return impossible(fmt::format("a PCIe link has {} lanes", up->width), device(id).name);
    text_.open("pci");
    write_pci_attributes(id, up);
    write_bridge(bridge);
    if (device(id).kind == DeviceKind::gpu) SIDESTEP_CHECK(write_gpu(id));
    if (device(id).kind == DeviceKind::nic) write_nic(id);
    if (device(id).kind == DeviceKind::pcie_switch) write_pci_links(id);
    for (const DeviceId below : tree_.below(id)) SIDESTEP_CHECK(write_pci(below, -1, depth + 1));
    text_.close();
    return {};
}

void Writer::write_pci_links(DeviceId id) {
    std::set<std::string> targets;
    for (const std::uint32_t position : tree_.links(id)) {
        const Link& link = topology_.links()[position];
        const DeviceId far = far_end(link, id);
        const bool tree = topology_.parent(id) == far || topology_.parent(far) == id;
        if (link.kind == LinkKind::pcie && device(far).kind == DeviceKind::pcie_switch && !tree)
            targets.insert(tree_.bus_id(far));
    }
    for (const std::string& target : targets) {
        text_.open("pcilink");
        text_.attribute("target", target);
        text_.close();
    }
}

// nullopt for links that are no business of a <gpu>.
std::optional<Writer::Line> Writer::line_to(const Link& link, DeviceId far) const {
    const std::string tag = link.kind == LinkKind::xgmi ? "xgmi" : "nvlink";
    if (link.kind != LinkKind::nvlink && link.kind != LinkKind::xgmi) return std::nullopt;
    if (device(far).kind == DeviceKind::gpu) {
        const std::string* told = find_property(device(far), "class");
        const bool sensible = told != nullptr && fits(*told) &&
                              (is_class(*told, display_class) || is_class(*told, accelerator_class));
        return Line{tag, tree_.bus_id(far), sensible ? *told : std::string(usual_class(device(far)))};
    }
    if (device(far).kind != DeviceKind::nvswitch) return std::nullopt;
    const bool nameless = hides_switches_ || (one_nameless_switch_ && !bus_id(device(far).bus_id));
    return Line{tag, nameless ? std::string(hidden) : tree_.bus_id(far), "0x068000"};
}

Result<Writer::Lines> Writer::links_of(DeviceId gpu) const {
    Lines lines;
    for (const std::uint32_t position : tree_.links(gpu)) {
        const Link& link = topology_.links()[position];
        const DeviceId far = far_end(link, gpu);
        auto line = line_to(link, far);
        const bool to_cpu = link.kind == LinkKind::c2c && far == cpu_;
        if (to_cpu && find_property(device(gpu), cpu_nvlink) != nullptr)
            line = Line{"nvlink", std::string(hidden), std::string(nvlink_cpu_class)};
        if (!line) continue;
        long& count = lines[*line];
        count += link.width;
        if (count > widest)
            return impossible(fmt::format("{} links lead to {}", count, device(far).name), device(gpu).name);
    }
    return lines;
}

std::string Writer::sm_text(DeviceId gpu) const {
    if (is_amd(device(gpu))) {
        const Product* known = product(device(gpu).model);
        return known == nullptr ? "" : fmt::format("{}", known->sm);
    }
    int sm = sm_of(device(gpu));
    if (sm == 0) sm = sm_of_model(device(gpu).model);
    for (const std::uint32_t position : tree_.links(gpu)) {
        const Link& link = topology_.links()[position];
        if (sm == 0 && link.kind == LinkKind::nvlink) sm = sm_of_nvlink(link.gb_per_s / link.width);
    }
    return sm == 0 ? "" : fmt::format("{}", sm);
}

Result<void> Writer::write_gpu(DeviceId id) {
    SIDESTEP_TRY(const Lines lines, links_of(id));
    std::vector<const Link*> to_cpu;
    if (find_property(device(id), cpu_nvlink) == nullptr) {
        for (const std::uint32_t position : tree_.links(id)) {
            const Link& link = topology_.links()[position];
            if (link.kind == LinkKind::c2c && far_end(link, id) == cpu_) to_cpu.push_back(&link);
        }
    }
    // A file without <gpu> leaves to NCCL what only the machine knows; so does what is written again.
    const std::string* without = find_property(device(id), no_gpu);
    const std::string* told = find_property(device(id), "class");
    const bool class_tells =
        told == nullptr || is_class(*told, display_class) || is_class(*told, accelerator_class);
    if (without != nullptr && class_tells && lines.empty() && to_cpu.empty()) return {};

    text_.open("gpu");
    write_property(id, "dev", number_of(id));
    write_property(id, "sm", sm_text(id));
    const auto told_gfx = device(id).properties.find(gfx);
    write_property(id, "gcn", told_gfx == device(id).properties.end() ? "" : told_gfx->second);
    write_property(id, "arch");
    write_property(id, "rank", number_of(id));
    write_property(id, "gdr");
    write_property(id, "mlopart");
    for (const auto& [line, count] : lines) {
        text_.open(line.tag);
        text_.attribute("target", line.target);
        text_.attribute("count", count);
        text_.attribute("tclass", line.pci_class);
        text_.close();
    }
    for (const Link* link : to_cpu) {
        if (link->width > widest)
            return impossible(fmt::format("C2C has {} links", link->width), device(id).name);
        const double each = std::clamp(std::round(link->gb_per_s * 1000 / link->width), 1.0,
                                       static_cast<double>(highest_c2c_mb_per_s));
        text_.open("c2c");
        text_.attribute("bw", static_cast<long>(each));
        text_.attribute("count", static_cast<long>(link->width));
        text_.close();
    }
    text_.close();
    return {};
}

// What a <net> is called; empty for a card that has none.
std::string net_name(const Device& nic) {
    if (const std::string* told = find_property(nic, "name")) {
        return *told == absent || !fits(*told) ? "" : *told;
    }
    const std::string name = nic.name.substr(nic.name.find(':') + 1);
    const bool digits = name.find_first_not_of("0123456789") == std::string::npos;
    return digits ? "" : name;
}

void Writer::write_nic(DeviceId id) {
    std::vector<DeviceId> nets{id};
    nets.insert(nets.end(), tree_.ports(id).begin(), tree_.ports(id).end());
    std::erase_if(nets, [&](DeviceId net) { return net_name(device(net)).empty(); });
    const std::string* told = find_property(device(id), "class");
    if (nets.empty() && (told == nullptr || is_class(*told, network_class))) return;
    text_.open("nic");
    for (const DeviceId net : nets) write_net(net);
    text_.close();
}

void Writer::write_net(DeviceId id) {
    text_.open("net");
    const std::string name = net_name(device(id));
    if (!name.empty()) text_.attribute("name", name);
    write_property(id, "dev", number_of(id));
    const long rate = network_mb_per_s(device(id));
    write_property(id, "speed", rate == 0 ? "" : fmt::format("{}", rate));
    write_properties(id, net_attributes);
    text_.close();
}

bool is_cluster(const Topology& topology) {
    std::set<int> machines;
    for (const Device& device : topology.devices()) {
        if (device.node >= 0) machines.insert(device.node);
    }
    return machines.size() > 1;
}

bool is_for_rccl(const Topology& topology) {
    const auto xgmi = [](const Link& link) { return link.kind == LinkKind::xgmi; };
    const auto amd_gpu = [](const Device& device) {
        return device.kind == DeviceKind::gpu && is_amd(device);
    };
    return std::any_of(topology.links().begin(), topology.links().end(), xgmi) ||
           std::any_of(topology.devices().begin(), topology.devices().end(), amd_gpu);
}

}  // namespace

}  // namespace topology::nccl_xml

Result<std::string> write_nccl_xml(const Topology& topology, int version) {
    if (version != 1 && version != 2) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("there is no version {} of the format", version), "",
                     "1 is for NCCL, 2 for RCCL"};
    }
    if (topology::nccl_xml::is_cluster(topology)) {
        return topology::nccl_xml::impossible(
            "NCCL's topology files hold one machine each, and this is a cluster", topology.name(),
            "write one of its machines: dgx-h100 instead of dgx-h100*128");
    }
    const int written = topology::nccl_xml::is_for_rccl(topology) ? 2 : version;
    return topology::nccl_xml::Writer(topology, written).write();
}

}  // namespace sidestep
