// Identifies a process, so that one can ask later whether it still runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sidestep/result.hpp>
#include "driver/fd.hpp"

namespace sidestep::driver {

struct ProcessMark {
    int process = 0;  // its id
    // In ticks since the machine started: another one where the id was given out again.
    std::uint64_t started = 0;
    std::uint64_t numbering = 0;  // the namespaces that both belong to
};

ProcessMark this_process();

// Not one that has ended and that its parent has not waited for (a zombie). True also where it cannot be told, since the
// id belongs to a numbering that is not seen from here, or nothing says whose it is (there is no /proc).
bool still_runs(const ProcessMark& mark);

// How far the steady clock of this process is ahead of the machine's: processes of a time namespace have another one. 0
// where there is no such thing, or no /proc.
std::int64_t clock_shift_ns();

// That this process may have at a time, as it is now (RLIMIT_NOFILE).
std::size_t most_descriptors();

// Readable once the process has ended, whatever its children inherited (pidfd_open, Linux 5.3). unsupported
// elsewhere.
Result<Fd> watch_process(int process);

}  // namespace sidestep::driver
