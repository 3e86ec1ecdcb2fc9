// The driver as programs open and close it: one Context for the process, and a count.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include <sidestep/context.hpp>
#include "shims/cufile/failure.hpp"

namespace sidestep::cufile {

// Safe to use from several threads.
class Driver {
public:
    // Never destroyed: programs close it from destructors that run at exit.
    static Driver& get();

    // One use more. The first opens the machine.
    Refusal open();
    // One use less. The last lets go of files and buffers; what is moving goes on. The Context stays for the next opening.
    Refusal close();
    // A use where there is none: what calls that need the driver do first. Costs a load where it is open.
    Refusal ensure_open();

    // The Context, without a use: for what cuFile does not have.
    Refusal ensure_machine();

    long uses() const { return uses_.load(std::memory_order_acquire); }
    bool is_open() const { return uses() > 0; }
    // It was open once, and is not.
    bool was_closed() const { return closed_.load(std::memory_order_acquire); }

    // Null before the first opening; the same one ever after.
    const Context* context() const { return context_.load(std::memory_order_acquire); }

private:
    Refusal open_locked();
    Refusal machine_locked();

    mutable std::mutex mutex_;  // of openings and closings
    std::optional<Context> owned_;
    std::atomic<const Context*> context_{nullptr};
    std::atomic<long> uses_{0};
    std::atomic<bool> closed_{false};
};

// What cuFileGetVersion answers, 1000 * major + 10 * minor: SIDESTEP_CUFILE_VERSION, else 1.18. A value that cannot be read is
// refused.
struct Version {
    int number = 1180;
    Refusal refused;

    // Structures grew in this one.
    bool has_vectors() const { return number >= 1190; }
};
const Version& version();

}  // namespace sidestep::cufile
