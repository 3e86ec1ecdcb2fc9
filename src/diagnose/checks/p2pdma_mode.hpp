// The two ways in which cuFile reaches NVMe drives directly: the module nvidia-fs, and the kernel's own
// peer-to-peer DMA.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnose/check.hpp"
#include "diagnose/evidence.hpp"

namespace sidestep::diagnose {

// One thing that P2PDMA mode needs.
struct Condition {
    std::optional<bool> met;  // nullopt: cannot be seen
    std::string name;         // "the kernel has PCI peer-to-peer DMA"
    Seen seen;
    std::string remedy;
    std::string command;  // may be empty
};

struct P2pdmaMode {
    Condition kernel;
    Condition multipath;
    Condition driver;  // its registry keys, on x86
    Condition cufile;
    // GPUs that cuFile does not list for this mode, by name; empty: all are, or are not told.
    std::vector<std::string> other_gpus;

    std::vector<Condition> all() const { return {kernel, multipath, driver, cufile}; }
    bool complete() const;
    // Whether someone began to set it up: the keys, or cuFile's switch.
    bool begun() const;
};

P2pdmaMode read_p2pdma_mode(const Evidence& evidence);

struct NvidiaFs {
    bool loaded = false;
    Seen seen;
    // Whether the NVMe driver gave itself to the module; nullopt: the list cannot be read.
    std::optional<bool> has_nvme;
    std::string modules;  // the list
};

NvidiaFs read_nvidia_fs(const Evidence& evidence);

}  // namespace sidestep::diagnose
