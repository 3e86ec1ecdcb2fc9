// What the kernel logged of GPUs.
#pragma once

#include <string>
#include <vector>

namespace sidestep::driver {

struct KernelLog {
    bool told = false;  // false: `reason` says why
    std::string reason;
    std::vector<std::string> lines;  // those of the NVIDIA driver's Xid, oldest first
};

// Of the running kernel, since it started or since its ring began. Reads it once, changes nothing. Many systems
// show it to root alone.
KernelLog read_kernel_log();

// The lines of a log that a KernelLog keeps. All of them: what a program causes time and again must not push out the one line
// of a GPU that fell off the bus.
std::vector<std::string> telling_lines(const std::string& text);

}  // namespace sidestep::driver
