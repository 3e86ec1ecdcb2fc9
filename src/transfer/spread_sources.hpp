// The files, and the published memory of nodes, that a spread to files reads.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "base/blocking_calls.hpp"
#include "transfer/spread_move.hpp"

namespace sidestep::transfer {

// Each is opened when a chunk comes to it, and stays open until others need its place: a process has few descriptors, and
// a save may read from more files than that. One thread at a time.
class SpreadSources {
public:
    // More only where one chunk needs them.
    static constexpr std::size_t max_open = 64;

    using Open = std::vector<AttachedMemory::One>;
    // May block; called on another thread.
    using Attach = std::function<Result<Open>(std::size_t memory)>;

    // What is opened is found in `attached`; what is there before needs no opening. Both outlive this.
    SpreadSources(base::BlockingCalls& calls, AttachedMemory& attached, Attach attach)
        : calls_(calls), attached_(attached), attach_(std::move(attach)), holders_(attached.all.size()) {}

    // Whether these are open. While they are not they are being opened, or wait until others are let go. `held` is the
    // caller's, false at first; once it is true they stay until let_go().
    Result<bool> hold(const std::vector<std::size_t>& memories, bool& held);
    void let_go(const std::vector<std::size_t>& memories);

    // This object has to stay meanwhile.
    bool calling() const { return call_.running(); }

private:
    void close_others(std::size_t wanted);

    base::BlockingCalls& calls_;
    AttachedMemory& attached_;
    const Attach attach_;
    std::vector<std::size_t> holders_;  // by memory
    std::vector<std::size_t> order_;    // of those that were opened, the first of them first
    std::vector<Open> closed_;          // to be destroyed by the next call; while it is running, its
    std::vector<std::pair<std::size_t, Open>> new_;  // the same of what it opened
    base::BlockingCall call_;
};

}  // namespace sidestep::transfer
