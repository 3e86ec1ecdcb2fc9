// What Linux shows of this process: its limits, variables, CPUs and capabilities.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/machine_files.hpp"
#include "topology/machine_facts_reader.hpp"

namespace sidestep::diagnose {

// A resource limit of /proc/self/limits; nullopt as a value: unlimited.
struct ProcessLimit {
    std::optional<std::uint64_t> soft;
    std::optional<std::uint64_t> hard;
    std::string words;  // "soft 8388608, hard unlimited"
};

// `name` as the file has it: "Max locked memory". nullopt where the file cannot be read or lacks the line.
std::optional<ProcessLimit> process_limit(const driver::MachineFiles& files, const std::string& name);

using topology::process_environment;

// A field of /proc/self/status: "Cpus_allowed_list", "CapEff".
std::optional<std::string> process_status(const driver::MachineFiles& files, const std::string& name);

// Whether the process has a capability in effect, by its number in linux/capability.h; nullopt where that is
// not told.
std::optional<bool> has_capability(const driver::MachineFiles& files, int number);
constexpr int cap_ipc_lock = 14;

// The ranges of a list such as "0-3,8,10-11"; what is not a number is left out.
using Ranges = std::vector<std::pair<int, int>>;
Ranges ranges_of(const std::string& list);
bool overlap(const Ranges& a, const Ranges& b);

}  // namespace sidestep::diagnose
