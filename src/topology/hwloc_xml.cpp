#include "topology/hwloc_xml.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/try.hpp"
#include "topology/nccl_xml/xml_parser.hpp"
#include "topology/pci_names.hpp"
#include "topology/pci_tree.hpp"

namespace sidestep::topology {

namespace {

using nccl_xml::XmlElement;

// hwloc tells GB/s. Of the widths that give that rate the one that such devices usually have.
PciSpeed speed_of(double gb_per_s, bool drive) {
    for (const int lanes : {drive ? 4 : 16, 16, 8, 4, 2, 1})
        if (const auto generation = pcie_generation_of(gb_per_s, lanes)) return {*generation, lanes};
    return {};
}

// hwloc's files name a document type, which the parser refuses since one could hold anything. This one does not.
std::string without_doctype(std::string_view text) {
    const auto start = text.find("<!DOCTYPE topology SYSTEM ");
    const auto end = start == std::string_view::npos ? start : text.find('>', start);
    if (end == std::string_view::npos || text.substr(start, end - start).find('[') != std::string_view::npos)
        return std::string(text);
    return std::string(text.substr(0, start)) + std::string(text.substr(end + 1));
}

class HwlocReader final : public nccl_xml::XmlVisitor {
public:
    std::vector<PciEntry> entries;

    Result<void> open(const XmlElement& element) override {
        Frame frame;
        if (!frames_.empty()) frame = frames_.back();
        if (element.name == "object") open_object(element, frame);
        if (element.name == "info" && frame.device) open_info(element, entries[*frame.device]);
        frames_.push_back(frame);
        return {};
    }
    Result<void> close() override {
        frames_.pop_back();
        return {};
    }

private:
    struct Frame {
        int numa_node = -1;
        std::optional<std::size_t> device;  // the PCI device that this is, or is below
    };

    static std::string told(const XmlElement& element, const char* name) {
        return std::string(element.attribute(name).value_or(""));
    }

    void open_object(const XmlElement& element, Frame& frame) {
        const std::string type = told(element, "type");
        if (type == "NUMANode") {
            // Its bridges stand beside it, below the same package.
            frame.numa_node = std::atoi(told(element, "os_index").c_str());
            if (!frames_.empty()) frames_.back().numa_node = frame.numa_node;
        } else if (type == "Bridge" || type == "PCIDev") {
            const std::string bus_id = told(element, "pci_busid");
            if (!bus_id.empty()) frame.device = add(element, bus_id, type == "Bridge", frame.numa_node);
        } else if (type == "OSDev" && frame.device) {
            name(entries[*frame.device], told(element, "name"));
        }
    }

    std::size_t add(const XmlElement& element, const std::string& bus_id, bool bridge, int numa_node) {
        const std::string type = told(element, "pci_type");  // "0302 [10de:2330] [10de:16c1] a1"
        PciEntry entry;
        entry.bus_id = bus_id;
        entry.numa_node = numa_node;
        const bool nvidia = type.find("[10de:") != std::string::npos;
        if (!bridge) entry.kind = kind_of_class(std::strtol(type.c_str(), nullptr, 16) << 8, nvidia);
        // hwloc does not say where the NVLinks of an NVSwitch lead.
        if (entry.kind == DeviceKind::nvswitch) entry.kind.reset();
        entry.now = speed_of(std::strtod(told(element, "pci_link_speed").c_str(), nullptr),
                             entry.kind == DeviceKind::drive);
        entry.can = entry.now;
        const std::string buses = told(element, "bridge_pci");  // "0000:[01-05]"
        if (const auto at = buses.find(":["); bridge && at != std::string::npos)
            entry.secondary = buses.substr(0, at) + ":" + buses.substr(at + 2, 2);
        entries.push_back(std::move(entry));
        return entries.size() - 1;
    }

    static void open_info(const XmlElement& element, PciEntry& entry) {
        const std::string name = told(element, "name");
        const std::string value = told(element, "value");
        if (name == "PCIVendor" && entry.model.empty()) entry.model = value;
        if (name == "PCIDevice") entry.model += (entry.model.empty() ? "" : " ") + value;
    }

    // Of the names that the system has for a card that of RDMA counts.
    static void name(PciEntry& entry, const std::string& told) {
        const bool rdma = told.starts_with("mlx") || told.starts_with("bnxt_re") || told.starts_with("irdma");
        if (entry.kind == DeviceKind::nic && (entry.name.empty() || rdma)) entry.name = "nic:" + told;
        if (entry.kind == DeviceKind::drive && entry.name.empty()) entry.name = "drive:" + told;
    }

    std::vector<Frame> frames_;
};

}  // namespace

bool is_hwloc_xml(std::string_view text) {
    return text.substr(0, 1024).find("<topology") != std::string_view::npos;
}

Result<Topology> read_hwloc_xml(std::string_view text, const std::string& where) {
    HwlocReader reader;
    if (auto read = nccl_xml::parse_xml(without_doctype(text), reader); !read) {
        Error error = read.error();
        error.where = where + " " + error.where;
        return error;
    }
    const auto& entries = reader.entries;
    if (std::none_of(entries.begin(), entries.end(),
                     [](const PciEntry& entry) { return entry.kind.has_value(); }))
        return Error{ErrorCode::invalid_argument, "there is no GPU, network card or NVMe drive in it", where,
                     "lstopo --whole-io --of xml FILE writes them"};
    Topology::Parts parts = pci_tree(entries);
    parts.name = where;
    parts.notes.emplace_back(
        "hwloc tells nothing of NVLinks; the lanes of PCIe links are guessed from their rates");
    return Topology::create(std::move(parts));
}

}  // namespace sidestep::topology
