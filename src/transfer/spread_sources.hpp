// The files, and the published memory of nodes, that a spread to files reads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "base/blocking_calls.hpp"

namespace sidestep::transfer {

// Each is opened when a chunk comes to it, and stays open until others need its place: a process has few descriptors, and
// a save may read from more files than that. One thread at a time.
class SpreadSources {
public:
    // More only where one chunk needs them.
    static constexpr std::size_t max_open = 64;

    // Of one memory; null: none. `fetched` is for verification.
    struct Open {
        std::shared_ptr<backend::Registration> linked, fetched;
    };
    // May block; called on another thread.
    using Attach = std::function<Result<Open>(std::size_t memory)>;

    SpreadSources(base::BlockingCalls& calls, std::size_t memories, Attach attach);

    // One that needs no opening; the caller keeps both.
    void set(std::size_t memory, backend::Registration* linked, backend::Registration* fetched);

    // Whether these are open. While they are not they are being opened, or wait until others are let go. `held` is the
    // caller's, false at first; once it is true they stay until let_go().
    Result<bool> hold(const std::vector<std::size_t>& memories, bool& held);
    void let_go(const std::vector<std::size_t>& memories);

    // By memory; null for those that are not open.
    const std::vector<backend::Registration*>& linked() const { return linked_; }
    const std::vector<backend::Registration*>& fetched() const { return fetched_; }

    // This object has to stay meanwhile.
    bool calling() const { return call_.running(); }

private:
    void close_others(std::size_t wanted);
    void open(std::vector<std::size_t> memories);

    base::BlockingCalls& calls_;
    const Attach attach_;
    std::vector<Open> open_;
    std::vector<std::size_t> holders_;  // by memory
    std::vector<backend::Registration*> linked_;
    std::vector<backend::Registration*> fetched_;
    std::vector<std::size_t> order_;  // of those that were opened, the first of them first
    std::vector<Open> closed_;        // to be destroyed by the next call; while it is running, its
    std::vector<std::pair<std::size_t, Open>> new_;  // the same of what it opened
    base::BlockingCall call_;
};

}  // namespace sidestep::transfer
