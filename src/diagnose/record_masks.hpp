// What a record leaves out: nothing in it may name a machine, its network or the people on it.
#pragma once

#include <string>

namespace sidestep::diagnose {

// The user's home folder in a record.
constexpr const char* home_record = "/home";

// The text of a file as a record may hold it. `host_name` is replaced wherever it stands.
//
// Kernel command line: only words that the readers know. Environment and NCCL's settings: only variables of GPU and
// network libraries, and of those that no check reads only the names. cuFile's settings: only the one that is looked for.
// NCCL's topology files: cards and hosts get other numbers.
// Lines with a UUID or serial number: left out. Network file systems: without their servers. Addresses in GID tables and
// routes: replaced by ones of the same kind. PCI configuration space: the device serial number capability is zeroed. Symbol
// tables: only the symbols that are looked for.
std::string masked(const std::string& path, std::string text, const std::string& host_name);

}  // namespace sidestep::diagnose
