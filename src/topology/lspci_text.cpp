#include "topology/lspci_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <vector>

#include "topology/link_rates.hpp"
#include "topology/pci_tree.hpp"

namespace sidestep::topology {

namespace {

// "1b:00.0" or "0000:1b:00.0" at the start of a line; empty where there is none.
std::string address_of(const std::string& line) {
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned device = 0;
    unsigned function = 0;
    if (std::sscanf(line.c_str(), "%8x:%2x:%2x.%1x ", &domain, &bus, &device, &function) != 4) {
        domain = 0;
        if (std::sscanf(line.c_str(), "%2x:%2x.%1x ", &bus, &device, &function) != 3) return {};
    }
    return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

// "Speed 16GT/s (downgraded), Width x8 (downgraded)"
PciSpeed speed_in(const std::string& line) {
    PciSpeed speed;
    const auto rate = line.find("Speed ");
    const auto width = line.find("Width x");
    if (rate == std::string::npos || width == std::string::npos) return speed;
    speed.generation = pcie_generation(std::strtod(line.c_str() + rate + 6, nullptr)).value_or(0);
    speed.lanes = std::atoi(line.c_str() + width + 7);
    return speed;
}

std::optional<DeviceKind> kind_of(std::string_view kind, const std::string& model) {
    const auto is = [&](const char* start) { return kind.starts_with(start); };
    // Functions that a card lends to guests have no link of their own.
    if (model.find("Virtual Function") != std::string::npos) return std::nullopt;
    if (is("Processing accelerators")) return DeviceKind::gpu;
    if (is("3D controller") || is("VGA compatible controller"))
        return model.starts_with("NVIDIA") ? std::optional(DeviceKind::gpu) : std::nullopt;
    if (is("Infiniband controller") || is("Ethernet controller")) return DeviceKind::nic;
    if (is("Non-Volatile memory controller")) return DeviceKind::drive;
    return std::nullopt;
}

// "3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)"
void read_head(const std::string& line, PciEntry& entry) {
    const auto start = line.find(' ') + 1;
    const auto colon = line.find(": ", start);
    if (colon == std::string::npos) return;
    entry.model = line.substr(colon + 2);
    for (const char* end : {" (rev ", " (prog-if "})
        entry.model.resize(std::min(entry.model.find(end), entry.model.size()));
    entry.kind = kind_of(std::string_view(line).substr(start, colon - start), entry.model);
}

void read_detail(const std::string& line, PciEntry& entry) {
    const auto after = [&](const char* name) -> const char* {
        const auto at = line.find(name);
        return at == std::string::npos ? nullptr : line.c_str() + at + std::string_view(name).size();
    };
    if (const char* text = after("NUMA node: ")) entry.numa_node = std::atoi(text);
    if (const char* text = after("secondary="))
        entry.secondary = fmt::format("{}:{:02x}", entry.bus_id.substr(0, entry.bus_id.find(':')),
                                      std::strtoul(text, nullptr, 16) & 0xff);
    if (after("LnkCap:")) entry.can = speed_in(line);
    if (after("LnkSta:")) entry.now = speed_in(line);
    if (const char* text = after("Kernel driver in use: ")) entry.driver = text;
    if (after("ACSCtl:"))
        for (const char* bit : {"ReqRedir+", "CmpltRedir+", "UpstreamFwd+"})
            entry.redirects = entry.redirects || line.find(bit) != std::string::npos;
}

std::vector<PciEntry> parse(std::string_view text) {
    std::istringstream lines{std::string(text)};
    std::vector<PciEntry> entries;
    for (std::string line; std::getline(lines, line);) {
        const std::string bus_id = address_of(line);
        if (!bus_id.empty()) {
            entries.push_back({});
            entries.back().bus_id = bus_id;
            read_head(line, entries.back());
        } else if (!entries.empty()) {
            read_detail(line, entries.back());
        }
    }
    return entries;
}

}  // namespace

bool is_lspci_text(std::string_view text) {
    return !address_of(std::string(text.substr(0, 16))).empty();
}

Result<Topology> read_lspci(std::string_view text, const std::string& where) {
    const auto entries = parse(text);
    if (std::none_of(entries.begin(), entries.end(),
                     [](const PciEntry& entry) { return entry.kind.has_value(); }))
        return Error{ErrorCode::invalid_argument, "there is no GPU, network card or NVMe drive in it", where,
                     "the file has to hold what lspci -vvv prints"};
    Topology::Parts parts = pci_tree(entries);
    parts.name = where;
    parts.notes.emplace_back("lspci tells nothing of NVLinks and of memory");
    return Topology::create(std::move(parts));
}

}  // namespace sidestep::topology
