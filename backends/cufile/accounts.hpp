// What cuFile's counters prove about requests. Pure.
#pragma once

#include <optional>

#include "driver/cufile.hpp"

namespace sidestep::backends::cufile {

using Counts = driver::CufileGpuCounts::Direction;

// The counts of one GPU and direction; zeros for a GPU that cuFile has not met yet.
Counts counts_of(const std::vector<driver::CufileGpuCounts>& all, const std::array<unsigned char, 16>& uuid,
                 bool write);

// Requests of one copy to cuFile, and what was counted on their GPU in the meantime.
struct Account {
    std::uint64_t requests = 0;      // of this copy
    Bytes bytes = 0;                 // that they moved
    Bytes largest = 0;               // of one request
    std::uint64_t all_requests = 0;  // of all copies of this backend, this one's included
    std::uint64_t direct = 0;        // as cuFile counted, whoever asked for it
    std::uint64_t posix = 0;
};

// How many of the requests are not shown to have been direct: one for each operation that went through host
// memory, and for each request without an operation that was direct; whoever caused it, since the counters
// are those of the whole process. So it may be too many. It is too few only where others of the process use
// cuFile on this GPU at the same time.
std::uint64_t unproven_requests(const Account& account);

// The bytes that these can have carried at most.
Bytes unproven_bytes(const Account& account);

// Why a trial of one request on a quiet GPU is not proof; nothing where it is one.
std::optional<std::string> what_a_trial_lacks(const Counts& before, const Counts& after);

}  // namespace sidestep::backends::cufile
