#include "driver/cpus.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/files.hpp"

namespace sidestep::driver {
namespace {

// More processors than any machine has, and the answer to a hostile file.
constexpr int max_cpus = 1 << 16;

struct CpuSet {
    explicit CpuSet(int count)
        : bits(CPU_ALLOC(static_cast<std::size_t>(count))),
          bytes(CPU_ALLOC_SIZE(static_cast<std::size_t>(count))) {
        CPU_ZERO_S(bytes, bits);
    }
    ~CpuSet() { CPU_FREE(bits); }
    CpuSet(const CpuSet&) = delete;
    CpuSet& operator=(const CpuSet&) = delete;

    cpu_set_t* bits;
    std::size_t bytes;
};

// "max 100000" or "150000 100000"; 0: no limit.
double quota_of(const std::string& quota, const std::string& period) {
    double time = 0;
    double of = 0;
    const auto read = [](const std::string& text, double& value) {
        return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc{};
    };
    if (!read(quota, time) || !read(period, of) || time <= 0 || of <= 0) return 0;
    return time / of;
}

double group_quota(const std::string& root) {
    if (const auto line = read_line(root + "/sys/fs/cgroup/cpu.max")) {
        const auto space = line->find(' ');
        if (space != std::string::npos) return quota_of(line->substr(0, space), line->substr(space + 1));
    }
    const auto quota = read_line(root + "/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    const auto period = read_line(root + "/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    return quota && period ? quota_of(*quota, *period) : 0;
}

bool read_number(std::string_view& text, int& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || value < 0 || value >= max_cpus) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return true;
}

}  // namespace

std::vector<int> allowed_cpus() {
    std::vector<int> cpus;
    for (int count = 1024; count <= max_cpus; count *= 2) {
        const CpuSet set(count);
        if (::sched_getaffinity(0, set.bytes, set.bits) != 0) continue;  // EINVAL: more than `count`
        for (int cpu = 0; cpu < count; ++cpu) {
            if (CPU_ISSET_S(static_cast<std::size_t>(cpu), set.bytes, set.bits)) cpus.push_back(cpu);
        }
        break;
    }
    if (cpus.empty()) cpus.push_back(0);
    return cpus;
}

int usable_cpu_count(const std::string& root) {
    const int allowed = static_cast<int>(allowed_cpus().size());
    const double quota = group_quota(root);
    if (quota <= 0) return allowed;
    return std::clamp(static_cast<int>(std::ceil(quota)), 1, allowed);
}

Result<std::vector<int>> node_cpus(int node) {
    const std::string folder = "/sys/devices/system/node";
    const auto list = read_line(fmt::format("{}/node{}/cpulist", folder, node));
    if (!list) {
        const auto online = read_line(folder + "/online").value_or("none are known");
        return Error{ErrorCode::not_found,
                     fmt::format("this machine has no NUMA node {} (nodes: {})", node, online),
                     fmt::format("host:{}", node), "use a node that is there, or plain `host`"};
    }
    SIDESTEP_TRY(const auto cpus, parse_cpu_list(*list));
    const auto allowed = allowed_cpus();
    std::vector<int> both;
    std::set_intersection(cpus.begin(), cpus.end(), allowed.begin(), allowed.end(), std::back_inserter(both));
    return both;
}

Result<std::vector<int>> parse_cpu_list(std::string_view text) {
    const auto refuse = [whole = std::string(text)] {
        return Error{
            ErrorCode::invalid_argument, fmt::format("'{}' is not a list of processors", whole), {}, {}};
    };
    std::vector<int> cpus;
    while (!text.empty()) {
        int first = 0;
        if (!read_number(text, first)) return refuse();
        int last = first;
        if (text.starts_with('-')) {
            text.remove_prefix(1);
            if (!read_number(text, last) || last < first) return refuse();
        }
        for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
        if (text.empty()) break;
        if (!text.starts_with(',')) return refuse();
        text.remove_prefix(1);
        if (text.empty()) return refuse();
    }
    std::sort(cpus.begin(), cpus.end());
    cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
    return cpus;
}

void pin_this_thread(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    const CpuSet set(cpus.back() + 1);
    for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), set.bytes, set.bits);
    ::pthread_setaffinity_np(::pthread_self(), set.bytes, set.bits);
}

}  // namespace sidestep::driver
