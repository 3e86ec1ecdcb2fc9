#include "diagnose/record_masks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "diagnose/driver_records.hpp"
#include "topology/p2pdma_reader.hpp"

namespace sidestep::diagnose {

namespace {

std::vector<std::string> split(const std::string& text, char at) {
    std::vector<std::string> parts;
    for (std::size_t start = 0; start < text.size();) {
        const std::size_t end = std::min(text.find(at, start), text.size());
        parts.push_back(text.substr(start, end - start));
        start = end + 1;
    }
    return parts;
}

template <typename Keep>
std::string only(const std::string& text, char separator, Keep keep) {
    std::string kept;
    for (const std::string& part : split(text, separator)) {
        if (keep(part)) kept += part + separator;
    }
    return kept;
}

bool starts_with_any(const std::string& text, const std::vector<std::string_view>& prefixes) {
    return std::any_of(prefixes.begin(), prefixes.end(),
                       [&](std::string_view prefix) { return text.starts_with(prefix); });
}

std::string masked_command_line(const std::string& text) {
    const std::vector<std::string_view> known = {
        "iommu",  "intel_iommu", "amd_iommu", "pci",      "hugepages",   "default_hugepagesz",
        "nvidia", "nvme",        "numa",      "isolcpus", "mitigations", "transparent_hugepage"};
    std::string line = text;
    std::replace(line.begin(), line.end(), '\n', ' ');
    return only(line, ' ', [&](const std::string& word) { return starts_with_any(word, known); }) + "\n";
}

// What the readers and checks ask for by name.
constexpr std::string_view values_kept[] = {"CUDA_LAUNCH_BLOCKING",
                                            "CUDA_VISIBLE_DEVICES",
                                            "CUFILE_ENV_PATH_JSON",
                                            "CUFILE_FORCE_COMPAT_MODE",
                                            "CUFILE_USE_PCIP2PDMA",
                                            "NCCL_ALGO",
                                            "NCCL_CONF_FILE",
                                            "NCCL_CROSS_NIC",
                                            "NCCL_CUMEM_ENABLE",
                                            "NCCL_DMABUF_ENABLE",
                                            "NCCL_IB_DISABLE",
                                            "NCCL_IB_GID_INDEX",
                                            "NCCL_IB_PCI_RELAXED_ORDERING",
                                            "NCCL_MNNVL_ENABLE",
                                            "NCCL_NET",
                                            "NCCL_NET_GDR_LEVEL",
                                            "NCCL_NET_GDR_READ",
                                            "NCCL_NVLS_ENABLE",
                                            "NCCL_P2P_DISABLE",
                                            "NCCL_P2P_LEVEL",
                                            "NCCL_PROTO",
                                            "NCCL_SHM_DISABLE",
                                            "NCCL_TOPO_FILE",
                                            "NVSHMEM_DISABLE_MNNVL",
                                            "NVSHMEM_DISABLE_NVLS",
                                            "NVSHMEM_DISABLE_P2P",
                                            "NVSHMEM_REMOTE_TRANSPORT",
                                            "PYTORCH_ALLOC_CONF",
                                            "PYTORCH_CUDA_ALLOC_CONF",
                                            "PYTORCH_NO_CUDA_MEMORY_CACHING",
                                            "UCX_IB_GID_INDEX",
                                            "UCX_IB_GPU_DIRECT_RDMA",
                                            "UCX_IB_PCI_RELAXED_ORDERING",
                                            "UCX_TLS"};

// Of the others, which hold addresses, paths and keys, the names. Each entry ends with `separator`.
std::string masked_settings(const std::string& text, char separator) {
    const std::vector<std::string_view> known = {
        "NCCL_",    "UCX_",     "CUFILE_", "CUDA_",     "NVIDIA_VISIBLE",
        "NVSHMEM_", "PYTORCH_", "TORCH_",  "SIDESTEP_", "KUBERNETES_SERVICE_HOST="};
    std::string kept;
    for (const std::string& entry : split(text, separator)) {
        if (entry.starts_with("HOME=")) kept += fmt::format("HOME={}{}", home_record, separator);
        if (!starts_with_any(entry, known)) continue;
        const std::string name = entry.substr(0, entry.find_first_of("= \t"));
        const bool whole =
            std::find(std::begin(values_kept), std::end(values_kept), name) != std::end(values_kept);
        kept += (whole ? entry : name + "=masked") + separator;
    }
    return kept;
}

// An address of the same kind: link-local, mapped IPv4, or global; an empty entry stays empty.
std::string masked_gid(const std::string& text) {
    if (text.find_first_not_of("0:\n") == std::string::npos) return text;
    if (text.starts_with("fe80")) return "fe80:0000:0000:0000:0000:0000:0000:0001\n";
    if (text.find("0000:0000:0000:0000:0000:ffff:") == 0) return "0000:0000:0000:0000:0000:ffff:0a00:0001\n";
    return "2001:0db8:0000:0000:0000:0000:0000:0001\n";
}

// "server:/export" -> "masked:/export", "//server/share" -> "//masked/share".
std::string masked_source(const std::string& source) {
    if (source.starts_with("//"))
        return "//masked" + source.substr(std::min(source.find('/', 2), source.size()));
    const auto remote = source.find(":/");
    return remote == std::string::npos ? source : "masked" + source.substr(remote);
}

// What stands after " - " in a line: type, source, and the file system's options, of which those that checks read are
// kept. Others name servers and users.
std::string masked_mounts(const std::string& text) {
    std::string result;
    for (const std::string& line : split(text, '\n')) {
        const auto type = line.find(" - ");
        if (type == std::string::npos) continue;
        const std::vector<std::string> words = split(line.substr(type + 3), ' ');
        if (words.size() < 3) continue;
        std::string options;
        for (const std::string& option : split(words[2], ',')) {
            if (option != "rw" && option != "ro" && !starts_with_any(option, {"size=", "data="})) continue;
            options += (options.empty() ? "" : ",") + option;
        }
        result +=
            fmt::format("{} - {} {} {}\n", line.substr(0, type), words[0], masked_source(words[1]), options);
    }
    return result;
}

unsigned byte_at(const std::string& text, std::size_t at) {
    return static_cast<unsigned char>(text[at]);
}

// Zeroes the device serial number: extended capability 0x0003, eight bytes at its offset 4 (PCI Express base
// specification).
std::string masked_configuration(std::string space) {
    std::set<std::size_t> been;
    for (std::size_t at = 0x100; at >= 0x100 && at + 12 <= space.size() && been.insert(at).second;) {
        const unsigned id = byte_at(space, at) | byte_at(space, at + 1) << 8;
        if (id == 0x0003) std::fill_n(space.begin() + static_cast<std::ptrdiff_t>(at) + 4, 8, '\0');
        at = (byte_at(space, at + 2) | byte_at(space, at + 3) << 8) >> 4;
    }
    return space;
}

std::string without_serials(const std::string& text) {
    return only(text, '\n', [](const std::string& line) {
        return line.find("UUID") == std::string::npos && line.find("erial") == std::string::npos;
    });
}

// Who built a kernel or driver, and where: "(user@host)".
std::string without_builders(std::string text) {
    for (auto open = text.find('('); open != std::string::npos; open = text.find('(', open + 1)) {
        const auto close = text.find(')', open);
        if (close == std::string::npos) break;
        if (text.substr(open, close - open).find('@') != std::string::npos)
            text.erase(open, close - open + 1);
    }
    return text;
}

// The table of IPv4 routes: networks and gateways become made-up ones, equal ones stay equal, none stays
// none.
std::string masked_routes(const std::string& text) {
    std::map<std::string, std::string> networks{{"00000000", "00000000"}};
    std::string result;
    for (const std::string& line : split(text, '\n')) {
        std::vector<std::string> columns = split(line, '\t');
        for (std::size_t i = 1; i < std::min<std::size_t>(columns.size(), 3); ++i) {
            std::string& address = columns[i];
            if (address.size() != 8 || address.find_first_not_of("0123456789ABCDEF") != std::string::npos)
                continue;
            // Little-endian: 10.0.N.0.
            const auto next = networks.size();
            address = networks.emplace(address, fmt::format("00{:02X}000A", next)).first->second;
        }
        for (std::size_t i = 0; i < columns.size(); ++i)
            result += fmt::format("{}{}", i > 0 ? "\t" : "", columns[i]);
        result += '\n';
    }
    return result;
}

// cuFile's settings name addresses and folders; one of them is looked for.
std::string masked_cufile_settings(const std::string& text) {
    const bool on = topology::asks_for_p2pdma(text);
    if (!on && !nlohmann::json::accept(text, true)) return "masked, and no JSON\n";
    return fmt::format("{{\"use_pci_p2pdma\": {}}}\n", on);
}

// An attribute of NCCL's topology file that tells cards or hosts apart: they stay apart.
std::string renumbered(std::string text, const std::string& attribute) {
    std::map<std::string, std::string> numbers;
    const std::string start = " " + attribute + "=\"";
    for (auto at = text.find(start); at != std::string::npos; at = text.find(start, at)) {
        at += start.size();
        const std::size_t size = std::min(text.find('"', at), text.size()) - at;
        const std::string next = fmt::format("0x{:x}", numbers.size() + 1);
        text.replace(at, size, numbers.emplace(text.substr(at, size), next).first->second);
    }
    return text;
}

// One processor speaks for all.
std::string first_processor(const std::string& text) {
    const auto end = text.find("\n\n");
    return end == std::string::npos ? text : text.substr(0, end + 2);
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
}

// ", pid=1234, name=train.py" names a user's program.
std::string masked_kernel_log(const std::string& text) {
    std::istringstream lines(text);
    std::string kept;
    for (std::string line; std::getline(lines, line);) {
        for (const char* word : {", pid=", ", name="}) {
            const auto at = line.find(word);
            if (at != std::string::npos) line.erase(at, line.find(',', at + 2) - at);
        }
        kept += line + "\n";
    }
    return kept;
}

}  // namespace

std::string masked(const std::string& path, std::string text, const std::string& host_name) {
    if (path.ends_with("/config") && path.starts_with("/sys/")) return masked_configuration(std::move(text));
    if (path == "/proc/kallsyms") {
        return only(text, '\n',
                    [](const std::string& line) {
                        return line.find("p2pdma_pgmap_ops") != std::string::npos;
                    }) +
               "recorded: only the symbols that are looked for\n";
    }
    if (path == "/proc/cmdline") text = masked_command_line(text);
    if (path == "/proc/self/environ") text = masked_settings(text, '\0');
    if (path == "/etc/nccl.conf") text = masked_settings(text, '\n');
    // A variable may name such files as it likes.
    const auto first = text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()), 1);
    if (path.ends_with(".json") || first == "{") text = masked_cufile_settings(text);
    if (path.ends_with(".xml") || first == "<")
        text = renumbered(renumbered(std::move(text), "guid"), "host_hash");
    if (path.find("/gids/") != std::string::npos) text = masked_gid(text);
    if (path.ends_with("/mountinfo")) text = masked_mounts(text);
    if (path.starts_with("/proc/driver/")) text = without_serials(text);
    if (path == "/proc/version" || path.starts_with("/proc/driver/")) text = without_builders(text);
    if (path == kernel_log_record) text = masked_kernel_log(text);
    if (path == "/proc/net/route") text = masked_routes(text);
    if (path == "/proc/cpuinfo") text = first_processor(text);
    // A shorter name would hit parts of other words.
    if (host_name.size() >= 4) replace_all(text, host_name, "host");
    return text;
}

}  // namespace sidestep::diagnose
