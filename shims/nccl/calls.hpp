// ncclGroupStart and ncclGroupEnd: what a thread has called in between, and how it is run.
//
// Nothing of a group blocks before its outermost end. There, first communicators are made, split and shrunk,
// each on a thread of its own, since they wait for each other; then operations are put on their streams: the
// first collectives of every communicator, the next ones of every one, and so on; at last the sends and receives
// of each, together.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "shims/nccl/abi.h"
#include "shims/nccl/communicator.hpp"

namespace sidestep::nccl {

// Something that may wait for other ranks.
struct Job {
    const void* about = nullptr;  // jobs about the same thing run in their order
    bool blocking = true;  // false: in the background; `run` and `failed` tell the communicator how it ended
    std::function<Result<void>()> run;
    std::function<void(const Error&)> failed;  // after a run() that failed, or instead of one
};

bool in_group();
void start_group();

// Runs it now, or at the end of the group. ncclInProgress where it goes on in the background.
Result<ncclResult_t> submit(Job job);
Result<ncclResult_t> submit(std::shared_ptr<Communicator> communicator, const Call& call);
// Releases a communicator, either now or after the calls in the group.
void release(std::shared_ptr<Communicator> communicator);

// An error that the end of the group, if there is one, has to answer too.
Result<ncclResult_t> noted(Result<ncclResult_t> result);

Result<ncclResult_t> end_group();
// Microseconds that the group's operations would take; none is run. Nothing at the end of a nested group.
Result<std::optional<double>> simulate_group();

}  // namespace sidestep::nccl
