#include "driver/memory_limits.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include "driver/files.hpp"

namespace sidestep::driver {
namespace {

std::optional<Bytes> number_of(std::string_view text) {
    const auto first = text.find_first_not_of(' ');
    if (first == std::string_view::npos) return std::nullopt;
    Bytes value = 0;
    const auto [end, error] = std::from_chars(text.data() + first, text.data() + text.size(), value);
    if (error != std::errc{}) return std::nullopt;
    return value;
}

// The number after `key` in a text of "key number" lines; `key` with its colon where the file has one.
std::optional<Bytes> field(const std::string& text, std::string_view key) {
    const auto at = text.find(key);
    if (at == std::string::npos) return std::nullopt;
    return number_of(std::string_view(text).substr(at + key.size()));
}

std::optional<Bytes> number_in(const std::string& path) {
    const auto line = read_line(path);
    return line ? number_of(*line) : std::nullopt;
}

void take_least(std::optional<AvailableMemory>& min, std::optional<Bytes> bytes, std::string source) {
    if (bytes && (!min || *bytes < min->bytes)) min = AvailableMemory{*bytes, std::move(source)};
}

// Limit less use, where pages of files that can be dropped do not count as used.
std::optional<Bytes> room(const std::string& folder, const char* limit_file, const char* use_file,
                          std::string_view cache_key) {
    const auto limit = number_in(folder + limit_file);  // "max" is not a number: no limit
    const auto use = number_in(folder + use_file);
    if (!limit || !use) return std::nullopt;
    const auto stat = read_text(folder + "/memory.stat");
    const Bytes cache = stat ? field(*stat, cache_key).value_or(0) : 0;
    const Bytes held = *use - std::min(*use, cache);
    return *limit - std::min(*limit, held);
}

// The control group's path out of /proc/self/cgroup: of the line that starts with `prefix` ("0::") or
// names the memory controller.
std::optional<std::string> group_path(const std::string& groups, std::string_view mark) {
    const auto at = groups.find(mark);
    if (at == std::string::npos) return std::nullopt;
    const auto begin = at + mark.size();
    return groups.substr(begin, groups.find('\n', begin) - begin);
}

// Every group up to the root of the tree has its own limit.
void take_groups(std::optional<AvailableMemory>& min, const std::string& mount, std::string path,
                 const char* limit_file, const char* use_file, std::string_view cache_key) {
    for (;;) {
        take_least(min, room(mount + path, limit_file, use_file, cache_key),
                   "the memory limit of the control group");
        if (path.empty() || path == "/") break;
        path.resize(path.rfind('/'));
    }
}

std::optional<Bytes> node_bytes(const std::string& root, int node) {
    const auto text = read_text(fmt::format("{}/sys/devices/system/node/node{}/meminfo", root, node));
    if (!text) return std::nullopt;
    Bytes kib = 0;
    for (const char* key : {"MemFree:", "Active(file):", "Inactive(file):", "SReclaimable:"}) {
        kib += field(*text, key).value_or(0);
    }
    return kib * 1024;
}

}  // namespace

std::optional<AvailableMemory> available_memory(int numa_node, const std::string& root) {
    std::optional<AvailableMemory> min;
    if (const auto text = read_text(root + "/proc/meminfo")) {
        if (const auto kib = field(*text, "MemAvailable:")) take_least(min, *kib * 1024, "MemAvailable");
    }
    if (const auto groups = read_text(root + "/proc/self/cgroup")) {
        if (auto path = group_path(*groups, "0::")) {
            take_groups(min, root + "/sys/fs/cgroup", *path, "/memory.max", "/memory.current",
                        "inactive_file ");
        }
        if (auto path = group_path(*groups, ":memory:")) {
            take_groups(min, root + "/sys/fs/cgroup/memory", *path, "/memory.limit_in_bytes",
                        "/memory.usage_in_bytes", "total_inactive_file ");
        }
    }
    if (numa_node >= 0) take_least(min, node_bytes(root, numa_node), fmt::format("NUMA node {}", numa_node));
    return min;
}

Bytes machine_memory() {
    const long pages = ::sysconf(_SC_PHYS_PAGES);
    const long page = ::sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? static_cast<Bytes>(pages) * static_cast<Bytes>(page) : Bytes{1} << 30;
}

Bytes resident_private_bytes() {
    // statm: total, resident and shared pages.
    const auto line = read_line("/proc/self/statm");
    if (!line) return 0;
    const auto resident_at = line->find(' ');
    const auto shared_at = line->find(' ', resident_at + 1);
    if (resident_at == std::string::npos || shared_at == std::string::npos) return 0;
    const Bytes resident = number_of(std::string_view(*line).substr(resident_at)).value_or(0);
    const Bytes shared = number_of(std::string_view(*line).substr(shared_at)).value_or(0);
    return (resident - std::min(resident, shared)) * static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
}

// get_mempolicy(2) by number, since its wrapper lives in libnuma.
int numa_node_of(const void* address) {
    int node = -1;
    const long status = ::syscall(SYS_get_mempolicy, &node, nullptr, 0, address, MPOL_F_NODE | MPOL_F_ADDR);
    return status == 0 ? node : -1;
}

}  // namespace sidestep::driver
