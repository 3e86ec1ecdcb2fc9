// ncclGroupStart and ncclGroupEnd: what a thread has called in between, and how it is run.
//
// A group does not block before its outermost end. Then communicators are made, split and shrunk first, each on its own thread,
// because they wait for each other. After that the operations are enqueued on their streams: the first collective of every
// communicator, the second of every one, and so on. The sends and receives of each communicator come last, together. Where
// one of the communicators is made in the background, the operations are enqueued first.
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
    bool blocking = true;         // false: in the background
    std::function<Result<void>()> run;
    // After a run() that failed, or instead of one.
    std::function<void(const Error&)> failed = [](const Error&) {};
    // In progress from the end of the group until the job has ended, and told how. A job that is given up before does not
    // touch it.
    std::shared_ptr<Communicator> busy = {};
};

bool in_group();
// A job about it waits for the end of this thread's group.
bool waits_in_group(const void* about);
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
