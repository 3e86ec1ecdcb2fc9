// What lies below a <cpu>: switches, GPUs with their NVLinks, network cards.
#include <fmt/format.h>

#include "base/try.hpp"
#include "topology/link_rates.hpp"
#include "topology/nccl_xml/products.hpp"
#include "topology/nccl_xml/reader.hpp"
#include "topology/nccl_xml/values.hpp"
#include "topology/pci_names.hpp"

namespace sidestep::topology::nccl_xml {

namespace {

constexpr int usual_generation = 3;  // NCCL's, for a speed it does not know
constexpr int usual_lanes = 16;
constexpr int unknown_lanes = 255;  // Linux's, for a port that does not tell

long number_of(const Device& device, std::string_view attribute) {
    const std::string* text = find_property(device, attribute);
    return text == nullptr ? 0 : whole_number(*text).value_or(0);
}

// Where a file names no vendor, or makes one up, the class has to do. The rest are the displays that a board
// has for its own management.
bool may_be_gpu(long vendor) {
    return vendor == nvidia || vendor == amd || vendor == 0 || vendor == 0xffff;
}

}  // namespace

Result<void> Reader::open_pci(const XmlElement& element, Frame& frame) {
    const auto address = element.attribute("busid");
    frame.text = tag_text(element.name, address ? "busid" : "", address.value_or(""));
    if (!address) return at_line(element.line, frame.text, "the attribute busid is missing");
    const auto id = bus_id(*address);
    if (!id) {
        return at_line(element.line, frame.text, "busid is no PCI address",
                       "one looks like 0000:1b:00.0; ffff:ff:01.0 and the like will do for bridges");
    }
    SIDESTEP_TRY(frame.lanes, number(element, frame, "link_width", 0, widest, 0));
    if (frame.lanes == unknown_lanes) frame.lanes = 0;
    const auto speed = element.attribute("link_speed");
    frame.generation = generation_of(speed.value_or("")).value_or(0);
    frame.has_class = element.attribute("class").has_value();
    frame.pci_class = std::string(element.attribute("class").value_or(""));
    if (above().tag == Tag::cpu) {
        SIDESTEP_TRY(frame.above, bridge_for(element, frame));
    } else {
        above().has_pci = true;
        frame.above = above().device;
    }
    Device made{DeviceKind::pcie_switch};
    made.bus_id = *id;
    made.numa_node = device(cpu().device).numa_node;
    made.node = device(cpu().device).node;
    frame.device = draft_.add(std::move(made), {static_cast<std::uint32_t>(element.line)});
    keep(element, frame.device, pci_attributes);
    // What the link tells needs no property.
    if (frame.generation == 0) set(frame.device, "link_speed", speed.value_or(absent));
    if (frame.lanes == 0) set(frame.device, "link_width", element.attribute("link_width").value_or(absent));
    return {};
}

Result<void> Reader::open_pcilink(const XmlElement& element, Frame& frame) {
    const std::string_view target = element.attribute("target").value_or("");
    frame.text = tag_text(element.name, "target", target);
    const auto id = bus_id(target);
    if (!id)
        return at_line(element.line, frame.text, "target is no PCI address", "one looks like 0000:1b:00.0");
    if (*id == device(above().device).bus_id)
        return at_line(element.line, frame.text, "the switch is joined to itself");
    draft_.switch_links.push_back({above().device, *id, element.line});
    return {};
}

Result<void> Reader::open_gpu(const XmlElement& element, Frame& frame) {
    frame.text = tag_text(element.name, "dev", element.attribute("dev").value_or(""));
    frame.device = above().device;
    if (above().has_gpu) {
        // One for every rank that shares the GPU, or every partition of it.
        draft_.notes.add("line {}: {}: {} holds several <gpu>, of which the first counts", element.line,
                         frame.text, above().text);
        frame.ignored = true;
        return {};
    }
    above().has_gpu = true;
    SIDESTEP_TRY(draft_.about[frame.device].wanted, number(element, frame, "dev", -1, highest_number, -1));
    SIDESTEP_TRY(const int sm, number(element, frame, "sm", 0, highest_number, 0));
    keep(element, frame.device, gpu_attributes);
    Device& gpu = device(frame.device);
    // Of an AMD GPU it is the number of compute units.
    if (!is_amd(gpu)) {
        gpu.properties.erase(property_name("sm"));
        if (sm > 0) set_sm(gpu, sm);
    }
    if (const std::string* gcn = find_property(gpu, "gcn")) gpu.properties[std::string(gfx)] = gfx_name(*gcn);
    for (const char* attribute : {"dev", "rank", "sm"}) {
        if (!element.attribute(attribute)) set(frame.device, attribute, absent);
    }
    return {};
}

double Reader::link_rate(const Device& gpu) const {
    const Product* known = product(number_of(gpu, "vendor"), number_of(gpu, "device"));
    const auto told = gpu.properties.find(gfx);
    if (told != gpu.properties.end()) return xgmi_gb_per_s(told->second);
    if (is_amd(gpu)) return xgmi_gb_per_s(known == nullptr ? "" : known->gcn);
    const int sm = sm_of(gpu);
    return nvlink_gb_per_s(sm == 0 && known != nullptr ? known->sm : sm);
}

Result<void> Reader::open_nvlink(const XmlElement& element, Frame& frame) {
    const std::string_view target = element.attribute("target").value_or("");
    frame.text = tag_text(element.name, "target", target);
    FarEnd end{above().device, element.name == "xgmi" ? LinkKind::xgmi : LinkKind::nvlink};
    end.line = element.line;
    end.pci_class = std::string(element.attribute("tclass").value_or(""));
    SIDESTEP_TRY(end.count, number(element, frame, "count", 0, widest, std::nullopt));
    if (end.count == 0) {
        draft_.notes.add("line {}: {}: has no links, left out", element.line, frame.text);
        return {};
    }
    if (is_class(end.pci_class, nvlink_cpu_class)) {
        above().cpu_links += end.count;
        if (above().cpu_links <= widest) return {};
        return at_line(element.line, frame.text, fmt::format("more than {} links in all", widest));
    }
    if (!target.empty() && !is_hidden(target)) {
        const auto id = bus_id(target);
        if (!id) {
            return at_line(element.line, frame.text, "target is no PCI address",
                           "one looks like 0000:1b:00.0; fffffff:ffff:ff stands for a hidden NVSwitch");
        }
        end.target = *id;
    }
    if (end.target == device(end.gpu).bus_id) {
        draft_.notes.add(
            "line {}: {}: points at its own GPU, as in virtual machines that hide the far end; "
            "left out",
            element.line, frame.text);
        return {};
    }
    draft_.far_ends.push_back(std::move(end));
    return {};
}

Result<void> Reader::open_c2c(const XmlElement& element, Frame& frame) {
    frame.text = tag_text(element.name, "", "");
    SIDESTEP_TRY(const int count, number(element, frame, "count", 1, widest, std::nullopt));
    SIDESTEP_TRY(const int each, number(element, frame, "bw", 1, highest_c2c_mb_per_s, std::nullopt));
    above(2).has_c2c = true;
    draft_.parts.links.push_back({above().device, cpu().device, LinkKind::c2c, count,
                                  static_cast<double>(each) * count / 1000, c2c_latency_us});
    return {};
}

Result<void> Reader::close_gpu(const Frame& frame) {
    if (frame.cpu_links == 0) return {};
    if (above().has_c2c)
        return at_line(frame.line, frame.text, "the GPU has both C2C and NVLinks to its processor");
    above().has_c2c = true;
    set(frame.device, cpu_nvlink, "1");
    draft_.parts.links.push_back({frame.device, cpu().device, LinkKind::c2c, frame.cpu_links,
                                  link_rate(device(frame.device)) * frame.cpu_links, nvlink_latency_us});
    return {};
}

Result<void> Reader::open_nic(const XmlElement& element, Frame& frame) {
    frame.text = tag_text(element.name, "", "");
    if (above().tag == Tag::pci) {
        above().has_nic = true;
        return {};
    }
    // A card without a PCI address: virtual, or one that the hypervisor hides.
    SIDESTEP_TRY(frame.above, bridge_for(element, frame));
    return {};
}

DeviceId Reader::add_card(const XmlElement& element, const Frame& nic) {
    const Frame& holder = above(2);
    Device made{DeviceKind::nic};
    made.node = device(holder.device).node;
    made.numa_node = device(holder.device).numa_node;
    if (holder.tag == Tag::pci) made.bus_id = device(holder.device).bus_id;
    const DeviceId card = draft_.add(std::move(made), {static_cast<std::uint32_t>(element.line)});
    if (holder.tag == Tag::pci) {
        join(holder, card);
    } else {
        set(card, virtual_card, "1");
        draft_.parts.links.push_back({card, nic.above, LinkKind::pcie, usual_lanes,
                                      pcie_gb_per_s(usual_generation, usual_lanes), pcie_latency_us});
    }
    return card;
}

Result<void> Reader::open_net(const XmlElement& element, Frame& frame) {
    const std::string_view name = element.attribute("name").value_or("");
    frame.text = tag_text(element.name, "name", name);
    SIDESTEP_TRY(const int wanted, number(element, frame, "dev", -1, highest_number, -1));
    Frame& holder = above(2);
    // The first <net> of a <pci> is the card; further ones are its other ports.
    if (holder.tag == Tag::pci && !std::exchange(holder.has_net, true)) {
        frame.device = holder.device;
    } else {
        frame.device = add_card(element, above());
    }
    draft_.about[frame.device].wanted = wanted;
    draft_.about[frame.device].name = std::string(name);
    keep(element, frame.device, net_attributes);
    if (!element.attribute("dev")) set(frame.device, "dev", absent);
    if (const auto speed = element.attribute("speed")) {
        Properties& properties = device(frame.device).properties;
        properties[std::string(network_rate)] = fmt::format("{}", whole_number(*speed).value_or(0));
        if (network_mb_per_s(device(frame.device)) == 0) {
            // Some plugins write -1.
            properties.erase(properties.find(network_rate));
            set(frame.device, "speed", *speed);
        }
    }
    return {};
}

Result<DeviceKind> Reader::kind_of(const Frame& frame) {
    if (frame.has_gpu + frame.has_nic + frame.has_pci > 1) {
        return at_line(frame.line, frame.text, "holds more than one of <gpu>, <nic> and <pci>",
                       "a GPU or network card has nothing below it: put what is below into a bridge");
    }
    if (frame.has_gpu) return DeviceKind::gpu;
    if (frame.has_nic) return DeviceKind::nic;
    if (frame.has_pci) return DeviceKind::pcie_switch;
    const std::string& named = frame.pci_class;
    const bool display = is_class(named, display_class) || is_class(named, accelerator_class);
    if (display && may_be_gpu(number_of(device(frame.device), "vendor"))) {
        for (const std::string_view attribute : {no_gpu, std::string_view("dev"), std::string_view("rank")})
            set(frame.device, attribute, absent);
        return DeviceKind::gpu;
    }
    if (is_class(named, network_class)) return DeviceKind::nic;
    if (is_class(named, drive_class)) return DeviceKind::drive;
    if (is_class(named, nvlink_class)) return DeviceKind::nvswitch;
    if (named.empty()) {
        if (classless_++ == 0) first_classless_ = fmt::format("{} in line {}", frame.text, frame.line);
    } else if (!is_class(named, bridge_class)) {
        draft_.notes.add("line {}: {}: is of class {}, and is counted as a switch, as NCCL does", frame.line,
                         frame.text, named.substr(0, 40));
    }
    return DeviceKind::pcie_switch;
}

Result<void> Reader::check_unique(const Frame& frame) {
    const Device& made = device(frame.device);
    const Claim claim{frame.line, made.kind == DeviceKind::pcie_switch};
    const auto [known, is_new] = claims_.emplace(fmt::format("{}|{}", made.node, made.bus_id), claim);
    if (is_new) return {};
    if (!claim.bridge && !known->second.bridge) {
        return at_line(
            std::max(frame.line, known->second.line), tag_text("pci", "busid", made.bus_id),
            fmt::format("line {} has a device of the same busid", std::min(frame.line, known->second.line)),
            "every device has a PCI address of its own");
    }
    draft_.notes.add("line {}: {}: line {} has the same busid; both count", frame.line, frame.text,
                     known->second.line);
    if (!claim.bridge) known->second = claim;
    return {};
}

void Reader::describe(const Frame& frame) {
    Device& made = device(frame.device);
    if (!frame.has_class) {
        set(frame.device, "class", absent);
    } else if (frame.pci_class != usual_class(made)) {
        set(frame.device, "class", frame.pci_class);
    }
    const long vendor = number_of(made, "vendor");
    const long chip = number_of(made, "device");
    const Product* known = made.kind == DeviceKind::gpu ? product(vendor, chip) : nullptr;
    if (known != nullptr) {
        made.model = std::string(known->model);
        if (!known->gcn.empty())
            made.properties.emplace(gfx, known->gcn);
        else if (sm_of(made) == 0)
            set_sm(made, known->sm);
    } else if (made.kind != DeviceKind::gpu && vendor > 0 && vendor < 0xffff && chip >= 0 && chip <= 0xffff) {
        made.model = pci_model(vendor, chip);
    }
    if (made.kind == DeviceKind::gpu) draft_.about[frame.device].link_rate = link_rate(made);
}

void Reader::join(const Frame& pci, DeviceId id) {
    if (pci.generation == 0 || pci.lanes == 0) {
        if (assumed_links_++ == 0) first_assumed_ = fmt::format("{} in line {}", pci.text, pci.line);
    }
    const int generation = pci.generation == 0 ? usual_generation : pci.generation;
    const int lanes = pci.lanes == 0 ? usual_lanes : pci.lanes;
    draft_.parts.links.push_back(
        {id, pci.above, LinkKind::pcie, lanes, pcie_gb_per_s(generation, lanes), pcie_latency_us});
}

Result<void> Reader::close_pci(const Frame& frame) {
    SIDESTEP_TRY(device(frame.device).kind, kind_of(frame));
    SIDESTEP_CHECK(check_unique(frame));
    describe(frame);
    // The PCIe link of an NVSwitch is for management; a GPU with C2C needs none.
    const bool said = frame.generation > 0 || frame.lanes > 0;
    if (device(frame.device).kind == DeviceKind::nvswitch || (frame.has_c2c && !said)) return {};
    join(frame, frame.device);
    return {};
}

}  // namespace sidestep::topology::nccl_xml
