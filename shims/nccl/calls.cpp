#include "shims/nccl/calls.hpp"

#include <algorithm>
#include <exception>
#include <future>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shims/nccl/failure.hpp"
#include "shims/nccl/streams.hpp"

namespace sidestep::nccl {
namespace {

// What one communicator has to do in the group.
struct Share {
    std::shared_ptr<Communicator> communicator;
    std::vector<Call> collectives;
    std::vector<Call> pairs;
    std::size_t taken = 0;  // collectives that have had their turn
    bool begun = false;     // some of it has been enqueued
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
    if (job.busy) job.busy->leave(done);
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
            if (job.busy) job.busy->leave(first);
        } else {
            first = run_job(job);
        }
    }
    return first;
}

// Jobs about the same thing: all of them block, or none.
using Chain = std::shared_ptr<const std::vector<Job>>;

std::vector<Chain> chains_of(std::vector<Job> jobs) {
    std::vector<std::vector<Job>> found;
    std::map<const void*, std::size_t> at;
    for (Job& job : jobs) {
        const auto [known, is_new] = at.emplace(job.about, found.size());
        if (is_new) found.emplace_back();
        found[known->second].push_back(std::move(job));
    }
    std::vector<Chain> chains;
    for (auto& chain : found) chains.push_back(std::make_shared<const std::vector<Job>>(std::move(chain)));
    return chains;
}

// Starts a thread for the chain, which runs it once `all_started` is true. Blocking ones are added to
// `threads` and write their result there.
Result<void> start(const Chain& chain, const std::shared_future<bool>& all_started,
                   std::vector<std::jthread>& threads, Result<void>& result) {
    try {
        if (chain->front().blocking) {
            threads.emplace_back([chain, all_started, &result] {
                if (all_started.get()) result = run_in_order(*chain);
            });
        } else {
            std::thread([chain, all_started] {
                if (all_started.get()) static_cast<void>(run_in_order(*chain));
            }).detach();
        }
    } catch (const std::exception& thrown) {  // at the limit of threads
        return Error{
            ErrorCode::out_of_memory, fmt::format("no thread could be started: {}", thrown.what()), {}, {}};
    }
    return {};
}

// True where some go on in the background. They wait for each other, so they all run or, where one has no
// thread to run on, none does.
Result<bool> run_jobs(std::vector<Job> jobs) {
    const std::vector<Chain> chains = chains_of(std::move(jobs));
    bool background = false;
    for (const Chain& chain : chains) background |= !chain->front().blocking;
    const auto enter = [&] {
        for (const Chain& chain : chains)
            for (const Job& job : *chain)
                if (job.busy) job.busy->enter();
    };
    std::vector<Result<void>> results(chains.size());
    if (chains.size() == 1 && !background) {
        enter();
        results[0] = run_in_order(*chains[0]);
    } else {
        Result<void> started;
        std::vector<std::jthread> threads;  // each is waited for, whatever happens
        std::promise<bool> all_started;
        const std::shared_future<bool> known = all_started.get_future().share();
        for (std::size_t i = 0; i < chains.size() && started.ok(); ++i)
            started = start(chains[i], known, threads, results[i]);
        if (started.ok()) enter();
        all_started.set_value(started.ok());
        threads.clear();
        if (!started.ok()) {
            for (const Chain& chain : chains) drop(*chain, started.error());
            return started.error();
        }
    }
    for (const auto& result : results)
        if (!result.ok()) return result.error();
    return background;
}

Result<void> run_together(Share& share, std::vector<Call> calls) {
    StreamJoin joined;
    if (share.communicator->device().emulated) {
        for (Call& call : calls) call.stream = nullptr;  // there are none
    } else if (auto done = joined.begin(calls, share.communicator->device().number); !done.ok()) {
        return done;
    }
    if (auto done = share.communicator->run_together(calls); !done.ok()) return done;
    share.begun = true;
    return joined.end();
}

// In turns, so that the first operations of all are under way before any stream is full.
Result<void> run_collectives(std::vector<Share>& shares) {
    for (bool more = true; more;) {
        more = false;
        for (Share& share : shares) {
            const auto next = share.collectives.begin() + static_cast<std::ptrdiff_t>(share.taken);
            const auto left = share.collectives.size() - share.taken;
            const std::size_t count = std::min(share.communicator->calls_together(), left);
            if (count == 0) continue;
            more = true;
            share.taken += count;
            auto done = run_together(share, {next, next + static_cast<std::ptrdiff_t>(count)});
            if (!done.ok()) return done;
        }
    }
    return {};
}

Result<void> enqueue(std::vector<Share>& shares) {
    if (auto done = run_collectives(shares); !done.ok()) return done;
    for (Share& share : shares) {
        if (share.pairs.empty()) continue;
        if (auto done = run_together(share, share.pairs); !done.ok()) return done;
    }
    return {};
}

Result<void> begin_shares(std::vector<Share>& shares) {
    const auto enqueued = enqueue(shares);
    // What has been enqueued cannot be taken back, and would wait for what now never comes.
    if (!enqueued.ok())
        for (const Share& share : shares)
            if (share.begun) share.communicator->end(enqueued.error());
    return enqueued;
}

Result<void> settle_shares(const std::vector<Share>& shares, const Result<void>& enqueued) {
    Result<void> first = enqueued;
    for (const Share& share : shares) {
        if (!enqueued.ok() && !share.begun) continue;
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

bool waits_in_group(const void* about) {
    return std::any_of(pending.jobs.begin(), pending.jobs.end(),
                       [&](const Job& job) { return job.about == about; });
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
    // What goes on in the background may hold its communicator for as long as other ranks like: operations come first then.
    const bool first =
        std::any_of(group.jobs.begin(), group.jobs.end(), [](const Job& job) { return !job.blocking; });
    auto begun = first ? begin_shares(group.shares) : Result<void>();
    const auto background = run_jobs(std::move(group.jobs));
    if (!first && !background.ok()) return background.error();
    if (!first) begun = begin_shares(group.shares);
    if (auto done = settle_shares(group.shares, begun); !done.ok()) return done.error();
    if (!background.ok()) return background.error();
    return *background ? ncclInProgress : ncclSuccess;
}

Result<std::optional<double>> simulate_group() {
    if (pending.depth > 1) {
        --pending.depth;
        return std::optional<double>();
    }
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
    return std::optional(slowest);
}

}  // namespace sidestep::nccl
