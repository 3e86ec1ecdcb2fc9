#include "driver/process.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include <fmt/format.h>

#include "driver/files.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

// Field 22 of /proc/PID/stat (proc(5)); the name in field 2 may hold anything, so fields count from its end.
std::uint64_t start_of(int process) {
    const auto text = read_text(fmt::format("/proc/{}/stat", process));
    if (!text) return 0;
    std::size_t at = text->rfind(')');
    for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text->find(' ', at + 1);
    return at == std::string::npos ? 0 : std::strtoull(text->c_str() + at, nullptr, 10);
}

std::uint64_t own_numbering() {
    struct stat status {};
    return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}  // namespace

ProcessMark this_process() {
    return {::getpid(), start_of(::getpid()), own_numbering()};
}

bool still_runs(const ProcessMark& mark) {
    if (mark.process <= 0) return false;
    if (mark.numbering != own_numbering()) return true;
    if (::kill(mark.process, 0) != 0 && errno == ESRCH) return false;
    const std::uint64_t started = start_of(mark.process);
    return started == 0 || mark.started == 0 || started == mark.started;
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
