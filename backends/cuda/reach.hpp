// Who may read and write whose memory: peer access, and the access lists of pools and mappings.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "backends/cuda/pointer.hpp"

namespace sidestep::backends::cuda {

// Peer access between the GPUs of a process. Enabled once for a pair, both ways, and left on. Safe to use
// from several threads.
class Peers {
public:
    explicit Peers(std::size_t gpus) : gpus_(gpus), enabled_(gpus * gpus) {}

    // The first call for a pair takes about 0.125 s (measured on H200), later ones nothing. Fails with
    // ErrorCode::unsupported where the machine does not allow it.
    Result<void> enable(const Gpu& a, const Gpu& b);

private:
    std::size_t gpus_;
    std::vector<std::atomic<bool>> enabled_;  // by a * gpus + b, a < b
    std::mutex mutex_;
};

// Lets `gpu` read and write pool or VMM memory of another GPU, `owner`, if it may not yet. The pool keeps
// that access for all its memory, a mapping for itself. Nothing to do for other kinds of memory. False where
// only `owner` can be let: cuMemAlloc memory of another process, which looks like a mapping and takes no
// access (seen on H200, driver 580.159.04); a copy with it is then carried out by `owner`.
Result<bool> grant(const Gpu& gpu, const Gpu& owner, const Buffer& buffer, const Pointer& pointer);

}  // namespace sidestep::backends::cuda
