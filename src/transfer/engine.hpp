// Runs the copies of one Context: submission, waiting, and the thread that drives what nobody waits for.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "transfer/job.hpp"

namespace sidestep::transfer {

// Safe to use from several threads. Destroyed after the last Transfer handle; waits for what is in
// flight then, for at most a second, and keeps the memory of what still hangs.
class Engine {
public:
    // `drain_limit`: how long a failed copy waits for its pieces in flight before it reports all the same.
    Engine(const Topology& topology, const backend::Registry& registry,
           std::chrono::milliseconds drain_limit = std::chrono::seconds(10));
    ~Engine();

    // Starts a copy. `stream` is a caller's CUstream, or null.
    std::shared_ptr<Activity> submit(const Buffer& from, const Buffer& to, const CopyOptions& options, void* stream);

    // Drives the job until it has a result or `limit` (if above zero) has passed; answers whether it has.
    bool wait(const std::shared_ptr<Activity>& job, std::chrono::nanoseconds limit);
    // Looks once, without blocking; answers whether it has a result.
    bool poll(const std::shared_ptr<Activity>& job);

    // The route for two buffers, without moving anything.
    Result<Route> route(const Buffer& from, const Buffer& to, const CopyOptions& options);
    // The route for two places, with memory as allocate() gives it there.
    Result<Route> route(const Place& from, const Place& to, Bytes bytes, const CopyOptions& options);

private:
    void enroll(std::shared_ptr<Activity> job);
    void settle(const std::shared_ptr<Activity>& job);
    void drive();

    const Topology& topology_;
    const backend::Registry& registry_;
    const std::chrono::milliseconds drain_limit_;
    Plans plans_;
    StagingPool pool_;

    std::mutex mutex_;  // guards the four below
    std::condition_variable wake_;
    std::vector<std::shared_ptr<Activity>> jobs_;
    std::thread thread_;  // started with the first job that needs driving
    bool stop_ = false;
};

}  // namespace sidestep::transfer
