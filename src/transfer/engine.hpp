// Runs the copies of one Context: submission, waiting, and the thread that drives what nobody waits for.
#pragma once

#include <optional>
#include <vector>

#include "base/owner_process.hpp"
#include "transfer/driving.hpp"
#include "transfer/movement.hpp"
#include "transfer/spread.hpp"

namespace sidestep::transfer {

// Safe to use from several threads. Destroyed after the last Transfer handle; waits for what is in flight then, for at most
// a second, and keeps the memory of what still hangs; for a file that is being opened it waits as long as that takes.
class Engine {
public:
    // `drain_limit`: how long a failed copy waits for its pieces in flight before it reports all the same.
    // `drive_beside`: as Lookout's.
    Engine(const Topology& topology, const backend::Registry& registry,
           std::chrono::milliseconds drain_limit = std::chrono::seconds(10),
           std::optional<bool> drive_beside = {});
    ~Engine();

    // Starts a copy. `stream` is a caller's CUstream, or null; `held` goes once nothing is in flight any more.
    std::shared_ptr<Activity> submit(const Buffer& from, const Buffer& to, const CopyOptions& options,
                                     void* stream, std::shared_ptr<void> held = {});
    // Starts many copies as one. The buffers are looked at during the call only.
    std::shared_ptr<Activity> submit_batch(const std::vector<BatchCopy>& copies, const CopyOptions& options,
                                           void* stream, std::shared_ptr<void> held = {});
    // Starts moving files to the memories of several places, or those to files. Of the options these count: verify,
    // page_cache, max_staging (for each place), chunk, deadline, stall_limit, sync_file, require and prefer.
    std::shared_ptr<Activity> submit_spread(Spread spread, const CopyOptions& options);

    // Whether this is the process that made it: see base::OwnerProcess. submit() asks too.
    Result<void> check_process() const { return owner_.check("this Context"); }
    // In a forked child: true, and the job has ended with that error if it had not before. Any thread.
    bool abandoned(Activity& job) const;

    // What a copy that cannot be begun ends as.
    static std::shared_ptr<Activity> refuse(Error error) {
        return std::make_shared<EndedActivity>(std::move(error));
    }

    // From now on the Engine's own thread drives the job too, and makes the calls that wait for its end.
    void drive_in_background(const std::shared_ptr<Activity>& job);

    // Drives the job until it has a result or `limit` (if above zero) has passed; answers whether it has.
    bool wait(const std::shared_ptr<Activity>& job, std::chrono::nanoseconds limit);
    // Looks once, without blocking; answers whether it has a result.
    bool poll(const std::shared_ptr<Activity>& job);
    // Hands out the result of one that has ended.
    Result<Receipt>& take(Activity& job);
    // No caller will ask for it any more.
    void let_go(Activity& job);

    // The route for two buffers, without moving anything.
    Result<Route> route(const Buffer& from, const Buffer& to, const CopyOptions& options);
    // The route for two places, with memory as allocate() gives it there.
    Result<Route> route(const Place& from, const Place& to, Bytes bytes, const CopyOptions& options);

    Machine& machine() { return *machine_; }

private:
    std::shared_ptr<Activity> begun(std::shared_ptr<Activity> activity, std::shared_ptr<void> held = {});
    // One that reported while pieces hang, or that holds a stream, goes on to be driven.
    void settle(const std::shared_ptr<Activity>& job) {
        if (!job->drained()) drive_in_background(job);
    }
    Round go_on(Activity& job);
    DrivingThread& driver_of(const Activity& job) { return job.starts_copies() ? starting_thread_ : thread_; }

    const base::OwnerProcess owner_;
    const std::unique_ptr<Machine> machine_;
    DrivingThread thread_{machine_->lookout};
    // Drives batches that start whole copies. That takes staging memory, which may free some, and a driver
    // may block whoever frees memory while a stream is held at a gate: the other thread must be free to open
    // it.
    DrivingThread starting_thread_{machine_->lookout};
};

}  // namespace sidestep::transfer
