#include "driver/kernel_log.hpp"

#include <sys/klog.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

namespace sidestep::driver {

namespace {

// Actions of syslog(2), which has no header for them.
constexpr int read_all = 3;
constexpr int buffer_size = 10;

constexpr int largest_log = 16 << 20;

}  // namespace

std::vector<std::string> telling_lines(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);)
        if (line.find("NVRM: Xid") != std::string::npos) lines.push_back(line);
    return lines;
}

KernelLog read_kernel_log() {
    KernelLog log;
    const int size = std::min(::klogctl(buffer_size, nullptr, 0), largest_log);
    if (size > 0) {
        std::string text(static_cast<std::size_t>(size), '\0');
        const int got = ::klogctl(read_all, text.data(), size);
        if (got >= 0) {
            text.resize(static_cast<std::size_t>(got));
            log.told = true;
            log.lines = telling_lines(text);
            return log;
        }
    }
    log.reason = std::string("the kernel's log may not be read: ") + std::strerror(errno);
    return log;
}

}  // namespace sidestep::driver
