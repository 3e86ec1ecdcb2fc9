// What the kernel logged of GPUs and PCIe links.
#pragma once

#include <string>
#include <vector>

namespace sidestep::driver {

struct KernelLog {
    bool told = false;  // false: `reason` says why
    std::string reason;
    std::vector<std::string>
        lines;  // those of the NVIDIA driver's Xid and of PCIe error reports, oldest first
};

// Of the running kernel, since it started or since its ring began. Reads it once, changes nothing. Many systems
// show it to root alone.
KernelLog read_kernel_log();

// The lines of a log that a KernelLog keeps: at most the last 200.
std::vector<std::string> telling_lines(const std::string& text);

}  // namespace sidestep::driver
