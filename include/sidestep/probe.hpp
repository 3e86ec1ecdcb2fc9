// Trust, but verify: real bytes over every pair of GPUs, checked and timed.
#pragma once

#include <functional>

#include <sidestep/api.h>
#include <sidestep/context.hpp>
#include <sidestep/probe_report.hpp>
#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep {

struct ProbeOptions {
    Bytes bytes = Bytes{64} << 20;  // of one copy; at least 4 KiB, rounded down to a multiple of 8
    int repeats = 5;                // timed copies of each pair, after one that is checked
    // Called before the first pair and after each, with those done and all; where it answers false, the report ends
    // there.
    std::function<bool(int done, int all)> progress;
};

// Copies between every two GPUs of the context, each way, by each engine, and back through host memory.
// Allocates two buffers of `bytes` on each GPU and frees them. ErrorCode::invalid_argument with fewer bytes than that,
// ErrorCode::unsupported with fewer than two GPUs or more than 32. Takes a second or so a pair.
SIDESTEP_API Result<ProbeReport> probe_pairs(const Context& context, const ProbeOptions& options = {});

}  // namespace sidestep
