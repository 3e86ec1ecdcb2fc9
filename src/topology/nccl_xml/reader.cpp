#include "topology/nccl_xml/reader.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "topology/link_rates.hpp"
#include "topology/nccl_xml/products.hpp"
#include "topology/nccl_xml/values.hpp"

namespace sidestep::topology::nccl_xml {

std::vector<std::string> Notes::take() {
    if (left_out_ > 0) notes_.push_back(fmt::format("and {} notes like these", left_out_));
    left_out_ = 0;
    return std::exchange(notes_, {});
}

DeviceId Draft::add(Device device, About with) {
    parts.devices.push_back(std::move(device));
    about.push_back(std::move(with));
    return static_cast<DeviceId>(parts.devices.size() - 1);
}

// Where NCCL looks for which element.
Tag Reader::tag_of(std::string_view name) const {
    const Tag parent = frames_.back().tag;
    if (name == "cpu" && parent == Tag::system) return Tag::cpu;
    if (name == "pci" && (parent == Tag::cpu || parent == Tag::pci)) return Tag::pci;
    if (name == "nic" && (parent == Tag::cpu || parent == Tag::pci)) return Tag::nic;
    if (name == "pcilink" && parent == Tag::pci) return Tag::pcilink;
    if (name == "gpu" && parent == Tag::pci) return Tag::gpu;
    if ((name == "nvlink" || name == "xgmi") && parent == Tag::gpu) return Tag::nvlink;
    if (name == "c2c" && parent == Tag::gpu) return Tag::c2c;
    if (name == "net" && parent == Tag::nic) return Tag::net;
    return Tag::other;
}

Result<void> Reader::open(const XmlElement& element) {
    if (ignored_depth_ > 0) return ++ignored_depth_, Result<void>();
    Frame frame;
    frame.line = element.line;
    frame.tag = frames_.empty() ? Tag::system : tag_of(element.name);
    SIDESTEP_CHECK(open(element, frame));
    if (frame.ignored)
        ++ignored_depth_;
    else
        frames_.push_back(std::move(frame));
    return {};
}

Result<void> Reader::open(const XmlElement& element, Frame& frame) {
    switch (frame.tag) {
        case Tag::system:
            return open_system(element, frame);
        case Tag::cpu:
            return open_cpu(element, frame);
        case Tag::pci:
            return open_pci(element, frame);
        case Tag::pcilink:
            return open_pcilink(element, frame);
        case Tag::gpu:
            return open_gpu(element, frame);
        case Tag::nvlink:
            return open_nvlink(element, frame);
        case Tag::c2c:
            return open_c2c(element, frame);
        case Tag::nic:
            return open_nic(element, frame);
        case Tag::net:
            return open_net(element, frame);
        case Tag::other:
            break;
    }
    frame.ignored = true;
    ignore(element);
    return {};
}

Result<void> Reader::close() {
    if (ignored_depth_ > 0) return --ignored_depth_, Result<void>();
    const Frame frame = std::move(frames_.back());
    frames_.pop_back();
    if (frame.tag == Tag::pci) return close_pci(frame);
    if (frame.tag == Tag::gpu) return close_gpu(frame);
    return {};
}

// NCCL passes elements over that it does not know, or that stand where it does not look.
void Reader::ignore(const XmlElement& element) {
    if (ignored_++ == 0)
        first_ignored_ = fmt::format("{} in line {}", tag_text(element.name, "", ""), element.line);
}

Result<void> Reader::open_system(const XmlElement& element, Frame& frame) {
    frame.text = tag_text(element.name, "", "");
    if (element.name == "graphs") {
        return at_line(element.line, frame.text, "this file holds NCCL's graphs, not a topology",
                       "give the file that NCCL_TOPO_DUMP_FILE names, not that of NCCL_GRAPH_DUMP_FILE");
    }
    if (element.name != "system") {
        return at_line(element.line, frame.text,
                       "this is not a topology file of NCCL: those begin with <system>",
                       "NCCL_TOPO_DUMP_FILE makes NCCL write one");
    }
    const auto text = element.attribute("version");
    if (!text) {
        return at_line(element.line, frame.text, "the version is missing",
                       "write <system version=\"1\">, or \"2\" for RCCL");
    }
    const auto version = whole_number(*text);
    if (version != 1 && version != 2) {
        return at_line(element.line, tag_text(element.name, "version", *text),
                       "the file is of another version: this program reads 1 (NCCL) and 2 (RCCL)");
    }
    draft_.parts.properties[property_name("version")] = fmt::format("{}", *version);
    draft_.parts.name = std::string(element.attribute("name").value_or(""));
    return {};
}

Result<int> Reader::number(const XmlElement& element, const Frame& frame, const char* attribute, long lowest,
                           long highest, std::optional<int> otherwise) const {
    const auto text = element.attribute(attribute);
    if (!text || (text->empty() && otherwise)) {
        if (otherwise) return *otherwise;
        return at_line(element.line, frame.text, fmt::format("the attribute {} is missing", attribute));
    }
    const auto value = whole_number(*text);
    if (!value) {
        return at_line(
            element.line, frame.text,
            fmt::format("{} is \"{}\", which is not a whole number", attribute, text->substr(0, 40)));
    }
    if (*value < lowest || *value > highest) {
        return at_line(element.line, frame.text,
                       fmt::format("{} is {}, and no machine has one outside {} to {}", attribute, *value,
                                   lowest, highest));
    }
    return static_cast<int>(*value);
}

void Reader::set(DeviceId id, std::string_view attribute, std::string_view value) {
    device(id).properties[property_name(attribute)] = std::string(value);
}

Result<void> Reader::open_cpu(const XmlElement& element, Frame& frame) {
    frame.text = tag_text(element.name, "numaid", element.attribute("numaid").value_or(""));
    SIDESTEP_TRY(const int node, number(element, frame, "numaid", -1, highest_number, std::nullopt));
    const auto [host, is_new] = hosts_.emplace(std::string(element.attribute("host_hash").value_or("")),
                                               static_cast<int>(hosts_.size()));
    if (is_new) cpus_of_host_.push_back(0);
    std::size_t& cpus = cpus_of_host_[static_cast<std::size_t>(host->second)];
    if (++cpus > max_cpus_of_a_host || ++cpus_ > max_cpus) {
        return at_line(element.line, frame.text,
                       fmt::format("a machine has more than {} <cpu>, or a file more than {}",
                                   max_cpus_of_a_host, max_cpus));
    }
    if (node >= 0 && !numa_nodes_.emplace(host->second, node).second) {
        return at_line(element.line, frame.text, fmt::format("NUMA node {} was there before", node),
                       "give every <cpu> of a machine its own numaid, and those of different machines "
                       "different host_hash");
    }
    const auto text = [&](const char* attribute) {
        return std::string(element.attribute(attribute).value_or(""));
    };
    Device made{DeviceKind::cpu};
    made.numa_node = node;
    made.node = host->second;
    made.model = processor_text({text("arch"), text("vendor"), text("familyid"), text("modelid")});
    frame.device = draft_.add(std::move(made), {static_cast<std::uint32_t>(element.line), node});
    keep(element, frame.device, cpu_attributes);
    return {};
}

Result<DeviceId> Reader::bridge_for(const XmlElement& element, const Frame& frame) {
    const DeviceId below = cpu().device;
    SIDESTEP_TRY(const int which, number(element, frame, bridge_attribute, 0, highest_number, 0));
    const auto [bridge, is_new] = bridges_.emplace(std::pair{below, which}, 0);
    if (is_new) {
        Device made{DeviceKind::host_bridge};
        made.numa_node = device(below).numa_node;
        made.node = device(below).node;
        bridge->second = draft_.add(std::move(made), {static_cast<std::uint32_t>(element.line)});
        // Its rate is known once everything below it is.
        draft_.parts.links.push_back({bridge->second, below, LinkKind::pcie, 0, 0, host_bridge_latency_us});
    }
    return bridge->second;
}

Draft Reader::finish() {
    if (ignored_ > 0) {
        draft_.notes.add(
            "elements that NCCL does not know, or not there, and that are left "
            "out: {} (first: {})",
            ignored_, first_ignored_);
    }
    if (classless_ > 0) {
        draft_.notes.add(
            "devices that do not say their class and are counted as switches, as NCCL does: {} (first: {})",
            classless_, first_classless_);
    }
    if (assumed_links_ > 0) {
        draft_.notes.add(
            "PCIe links that do not say their speed or width and are counted as gen3 "
            "or x16, as NCCL does: {} (first: {})",
            assumed_links_, first_assumed_);
    }
    draft_.hosts = hosts_.size();
    return std::move(draft_);
}

Result<Draft> read_draft(std::string_view text) {
    Reader reader;
    SIDESTEP_CHECK(parse_xml(text, reader));
    return reader.finish();
}

}  // namespace sidestep::topology::nccl_xml
