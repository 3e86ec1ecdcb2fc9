// Which processors this process may use, and which belong to a NUMA node.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sidestep/result.hpp>

namespace sidestep::driver {

// The processors sched_getaffinity allows, in ascending order; never empty.
std::vector<int> allowed_cpus();

// How many threads can really run at once: the allowed processors, or less where a control group limits
// processor time (cpu.max, or cpu.cfs_quota_us of version 1), rounded up. At least 1. `root` stands
// before the paths that are read.
int usable_cpu_count(const std::string& root = "");

// The processors of a NUMA node that this process may use. ErrorCode::not_found where the node is not
// there, naming the nodes that are.
Result<std::vector<int>> node_cpus(int node);

// Reads "0-3,8,10-11", the form of /sys. Fails with invalid_argument on anything else.
Result<std::vector<int>> parse_cpu_list(std::string_view text);

// Keeps the calling thread on these processors. Best effort: a cpuset may change under us.
void pin_this_thread(const std::vector<int>& cpus);

}  // namespace sidestep::driver
