#include "topology/p2pdma_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

namespace sidestep::topology {
namespace {

using driver::MachineFiles;

std::string lower(std::string text) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return text;
}

// Whether a list such as "RMForceStaticBar1=1;Other=0x2" gives the key a value above 0. Keys ignore case.
bool has_key(const std::string& list, const std::string& key) {
    const std::string all = lower(list);
    const auto at = all.find(lower(key) + "=");
    return at != std::string::npos && std::strtol(all.c_str() + at + key.size() + 1, nullptr, 0) > 0;
}

// The end of a string in quotes that begins at `at`, or of the text.
std::size_t end_of_string(std::string_view json, std::size_t at) {
    for (std::size_t i = at + 1; i < json.size(); ++i) {
        if (json[i] == '\\')
            ++i;
        else if (json[i] == '"')
            return i + 1;
    }
    return json.size();
}

// Without blanks and comments.
std::string bare(std::string_view json) {
    std::string text;
    for (std::size_t i = 0; i < json.size();) {
        std::size_t next = i + 1;
        if (json[i] == '"') {
            next = end_of_string(json, i);
            text.append(json.substr(i, next - i));
        } else if (json.substr(i, 2) == "//") {
            next = std::min(json.find('\n', i), json.size());
        } else if (json.substr(i, 2) == "/*") {
            const std::size_t end = json.find("*/", i + 2);
            next = end == std::string_view::npos ? json.size() : end + 2;
        } else if (std::string_view(" \t\r\n").find(json[i]) == std::string_view::npos) {
            text += json[i];
        }
        i = next;
    }
    return text;
}

}  // namespace

bool is_on(const std::string& value) {
    return lower(value) == "true" || value == "1";
}

bool all_c2c(const Topology& topology) {
    int joined = 0;
    for (DeviceId id = 0; id < topology.devices().size(); ++id) {
        if (topology.device(id).kind != DeviceKind::gpu) continue;
        joined += std::any_of(topology.links().begin(), topology.links().end(), [&](const Link& link) {
            return link.kind == LinkKind::c2c && (link.a == id || link.b == id);
        });
    }
    return joined > 0 && joined == topology.gpu_count();
}

bool maps_peer_memory(const std::string& kernel_release) {
    char* end = nullptr;
    const long major = std::strtol(kernel_release.c_str(), &end, 10);
    if (end == kernel_release.c_str()) return true;
    const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
    if (major > 6 || (major == 6 && minor >= 2)) return true;
    const auto red_hat = kernel_release.find(".el9_");
    return red_hat != std::string::npos && std::atoi(kernel_release.c_str() + red_hat + 5) >= 4;
}

Setting static_bar1(const MachineFiles& files, const Topology& topology) {
    Setting keys{std::nullopt, {"cannot be read", "/proc/driver/nvidia/params"}};
    // With the keys at work the driver gives the kernel each GPU's BAR1 as peer memory.
    for (const Device& gpu : topology.devices()) {
        if (gpu.kind != DeviceKind::gpu) continue;
        const std::string pool = fmt::format("/sys/bus/pci/devices/{}/p2pmem/size", gpu.bus_id);
        if (const auto size = files.number(pool)) return {true, {fmt::format("{}", *size), pool}};
    }
    std::istringstream lines(files.text(keys.seen.source).value_or(""));
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("RegistryDwords:")) continue;
        keys.seen.value = line;
        keys.on = has_key(line, "RMForceStaticBar1") && has_key(line, "RmForceDisableIomapWC");
    }
    return keys;
}

Setting cufile_p2pdma(const MachineFiles& files) {
    if (const std::string value = process_variable(files, "CUFILE_USE_PCIP2PDMA"); !value.empty())
        return {is_on(value), {"CUFILE_USE_PCIP2PDMA=" + value, "/proc/self/environ"}};
    std::string path = process_variable(files, "CUFILE_ENV_PATH_JSON");
    if (path.empty()) path = "/etc/cufile.json";
    const auto text = files.text(path, std::size_t{1} << 20);
    if (!text) return {false, {"does not exist", path}};
    const bool on = asks_for_p2pdma(*text);
    // The file that NVIDIA ships has comments.
    if (!on && !nlohmann::json::accept(*text, true)) return {false, {"is no JSON", path}};
    return {on, {fmt::format("use_pci_p2pdma: {}", on), path}};
}

bool asks_for_p2pdma(std::string_view json) {
    return bare(json).find("\"use_pci_p2pdma\":true") != std::string::npos;
}

}  // namespace sidestep::topology
