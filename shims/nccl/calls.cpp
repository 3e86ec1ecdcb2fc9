#include "shims/nccl/calls.hpp"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "shims/nccl/failure.hpp"
#include "shims/nccl/streams.hpp"

namespace sidestep::nccl {
namespace {

// What one communicator has to do in the group.
struct Share {
    std::shared_ptr<Communicator> communicator;
    std::vector<Call> collectives;
    std::vector<Call> pairs;
};

struct Pending {
    int depth = 0;
    bool has_failed = false;
    Error failure;  // the first one
    std::vector<Job> jobs;
    std::vector<Share> shares;
    std::vector<std::shared_ptr<Communicator>> released;
};
thread_local Pending pending;

Share& share_of(const std::shared_ptr<Communicator>& communicator) {
    auto& shares = pending.shares;
    const auto found = std::find_if(shares.begin(), shares.end(),
                                    [&](const Share& share) { return share.communicator == communicator; });
    if (found != shares.end()) return *found;
    shares.push_back({communicator, {}, {}});
    return shares.back();
}

// Exceptions stay on their thread.
Result<void> run_job(const Job& job) {
    Result<void> done;
    try {
        done = job.run();
    } catch (const std::exception& thrown) {
        done = Error{ErrorCode::internal, thrown.what(), {}, {}};
    }
    if (!done.ok()) job.failed(done.error());
    return done;
}

void drop(const std::vector<Job>& jobs, const Error& why) {
    for (const Job& job : jobs) job.failed(why);
}

Result<void> run_in_order(const std::vector<Job>& jobs) {
    Result<void> first;
    for (const Job& job : jobs) {
        if (!first.ok()) {
            job.failed(first.error());
        } else {
            first = run_job(job);
        }
    }
    return first;
}

void run_in_background(std::vector<Job> jobs) {
    std::thread([jobs = std::move(jobs)] { static_cast<void>(run_in_order(jobs)); }).detach();
}

// True where some go on in the background.
Result<bool> run_jobs(std::vector<Job> jobs) {
    std::vector<std::vector<Job>> chains;
    std::map<const void*, std::size_t> chain_of;
    for (Job& job : jobs) {
        const auto [found, is_new] = chain_of.emplace(job.about, chains.size());
        if (is_new) chains.emplace_back();
        chains[found->second].push_back(std::move(job));
    }
    bool background = false;
    std::vector<Result<void>> results(chains.size());
    {
        std::vector<std::jthread> threads;  // each is waited for, whatever happens
        for (std::size_t i = 0; i < chains.size(); ++i) {
            if (!chains[i].front().blocking) {
                background = true;
                run_in_background(std::move(chains[i]));
            } else if (chains.size() == 1) {
                results[i] = run_in_order(chains[i]);
            } else {
                threads.emplace_back([&results, &chains, i] { results[i] = run_in_order(chains[i]); });
            }
        }
    }
    for (const auto& result : results)
        if (!result.ok()) return result.error();
    return background;
}

// In turns, so that the first operations of all are under way before any stream is full.
Result<void> run_collectives(const std::vector<Share>& shares) {
    bool more = true;
    for (std::size_t turn = 0; more; ++turn) {
        more = false;
        for (const Share& share : shares) {
            if (turn >= share.collectives.size()) continue;
            more = true;
            if (auto done = share.communicator->run(share.collectives[turn]); !done.ok()) return done;
        }
    }
    return {};
}

Result<void> run_pairs(const Share& share) {
    StreamJoin joined;
    std::vector<Call> calls = share.pairs;
    if (!share.communicator->device().emulated) {
        if (auto done = joined.begin(calls, share.communicator->device().number); !done.ok()) return done;
    }
    auto done = share.communicator->run_pairs(calls);
    return done.ok() ? joined.end() : done;
}

Result<void> run_shares(const std::vector<Share>& shares) {
    if (auto done = run_collectives(shares); !done.ok()) return done;
    for (const Share& share : shares) {
        if (share.pairs.empty()) continue;
        if (auto done = run_pairs(share); !done.ok()) return done;
    }
    Result<void> first;
    for (const Share& share : shares) {
        auto done = share.communicator->settle();
        if (first.ok() && !done.ok()) first = done;
    }
    return first;
}

Result<Pending> leave_group(const char* without_start) {
    if (pending.depth == 0) return misuse(without_start);
    return std::exchange(pending, Pending{});
}

}  // namespace

bool in_group() {
    return pending.depth > 0;
}

void start_group() {
    ++pending.depth;
}

Result<ncclResult_t> noted(Result<ncclResult_t> result) {
    if (!result.ok() && in_group() && !pending.has_failed) {
        pending.has_failed = true;
        pending.failure = result.error();
    }
    return result;
}

Result<ncclResult_t> submit(Job job) {
    if (in_group()) {
        pending.jobs.push_back(std::move(job));
        return ncclSuccess;
    }
    std::vector<Job> jobs;
    jobs.push_back(std::move(job));
    const auto background = run_jobs(std::move(jobs));
    if (!background.ok()) return background.error();
    return *background ? ncclInProgress : ncclSuccess;
}

Result<ncclResult_t> submit(std::shared_ptr<Communicator> communicator, const Call& call) {
    if (in_group()) {
        Share& share = share_of(communicator);
        (call.is_pair() ? share.pairs : share.collectives).push_back(call);
        return ncclSuccess;
    }
    if (auto done = communicator->run(call); !done.ok()) return done.error();
    if (auto done = communicator->settle(); !done.ok()) return done.error();
    return ncclSuccess;
}

void release(std::shared_ptr<Communicator> communicator) {
    if (in_group()) pending.released.push_back(std::move(communicator));
}

Result<ncclResult_t> end_group() {
    if (pending.depth > 1) {
        --pending.depth;
        return ncclSuccess;
    }
    auto left = leave_group("there is no ncclGroupStart to end");
    if (!left.ok()) return left.error();
    Pending group = std::move(*left);
    if (group.has_failed) {
        drop(group.jobs, group.failure);
        return group.failure;
    }
    const auto background = run_jobs(std::move(group.jobs));
    if (!background.ok()) return background.error();
    if (auto done = run_shares(group.shares); !done.ok()) return done.error();
    return *background ? ncclInProgress : ncclSuccess;
}

Result<double> simulate_group() {
    if (pending.depth > 1) return misuse("only the outermost group can be simulated");
    auto left = leave_group("there is no ncclGroupStart to end");
    if (!left.ok()) return left.error();
    const Pending group = std::move(*left);
    drop(group.jobs,
         group.has_failed ? group.failure : misuse("ncclGroupSimulateEnd only simulates the group"));
    if (group.has_failed) return group.failure;
    double slowest = 0;
    for (const Share& share : group.shares) {
        double sum = 0;
        for (const auto* calls : {&share.collectives, &share.pairs})
            for (const Call& call : *calls) sum += share.communicator->expected_us(call);
        slowest = std::max(slowest, sum);
    }
    return slowest;
}

}  // namespace sidestep::nccl
