#include "driver/process.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "driver/files.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

// What /proc/PID/stat says (proc(5)), where PID is counted there as it is here: a namespace may have the /proc of another.
struct Stat {
    std::uint64_t started = 0;  // 0: it cannot be told
    bool ended = false;         // though nobody has waited for it yet
};

Stat stat_of(int process) {
    constexpr unsigned state = 3, threads = 20, start = 22;
    std::array<char, 32> self{};
    if (::readlink("/proc/self", self.data(), self.size() - 1) < 0 || std::atoi(self.data()) != ::getpid())
        return {};
    const auto text = read_text(fmt::format("/proc/{}/stat", process));
    const std::size_t name_end = text ? text->rfind(')') : std::string::npos;  // the name may hold anything
    if (name_end == std::string::npos) return {};
    std::istringstream words(text->substr(name_end + 1));
    Stat found;
    bool zombie = false;
    std::string word;
    for (unsigned field = state; field <= start && words >> word; ++field) {
        if (field == state) zombie = word == "Z" || word == "X" || word == "x";
        // The first thread may have ended alone.
        if (field == threads) found.ended = zombie && std::strtoull(word.c_str(), nullptr, 10) <= 1;
        if (field == start) found.started = std::strtoull(word.c_str(), nullptr, 10);
    }
    return found;
}

std::uint64_t namespace_of(const char* path) {
    struct stat status {};
    return ::stat(path, &status) == 0 ? status.st_ino : 0;
}

// Of the ids, and of the clock that starts are told by: the kernel shifts them for each reader. Numbers of namespaces
// have 32 bits.
std::uint64_t own_numbering() {
    return namespace_of("/proc/self/ns/pid") | namespace_of("/proc/self/ns/time") << 32;
}

}  // namespace

ProcessMark this_process() {
    return {::getpid(), stat_of(::getpid()).started, own_numbering()};
}

bool still_runs(const ProcessMark& mark) {
    if (mark.process <= 0) return false;
    const std::uint64_t own = own_numbering();
    if (mark.numbering != own || (own & 0xffffffff) == 0) return true;
    if (::kill(mark.process, 0) != 0 && errno == ESRCH) return false;
    const Stat now = stat_of(mark.process);
    return !now.ended && (now.started == 0 || mark.started == 0 || now.started == mark.started);
}

std::int64_t clock_shift_ns() {
    constexpr std::int64_t second = 1'000'000'000;
    const auto text = read_text("/proc/self/timens_offsets");
    std::istringstream words(text ? *text : std::string());
    std::string clock;
    std::int64_t seconds = 0, rest = 0;
    while (words >> clock >> seconds >> rest)
        if (clock == "monotonic") return seconds * second + rest;
    return 0;
}

std::size_t most_descriptors() {
    rlimit limit{};
    return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<std::size_t>(limit.rlim_cur) : 1024;
}

Result<Fd> watch_process(int process) {
#ifdef SYS_pidfd_open
    Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
    if (fd) return fd;
    return system_error(errno, "a process cannot be watched", "pidfd_open");
#else
    (void)process;
    return Error{ErrorCode::unsupported, "a process cannot be watched", "pidfd_open", {}};
#endif
}

}  // namespace sidestep::driver
