// Pieces whose calls block, carried out by threads.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.hpp"
#include "base/workers.hpp"

namespace sidestep::backend {

// Any thread may call. Ends as base::Workers does.
class BlockingPieces {
public:
    using Call = std::function<Result<void>()>;

    BlockingPieces(std::size_t max_threads, std::string name) : workers_({max_threads}, std::move(name)) {}

    // The flight ends when all calls have returned, and are destroyed, with the first error. Fails as base::Workers::add
    // does.
    Result<Progress> start(std::vector<Call> calls, Flight& flight) {
        const std::size_t count = calls.size();
        const auto work = std::make_shared<Work>(std::move(calls), flight);
        flight.queued(work);
        // Goes with the last of the tasks, whether they were carried out or dropped at the end.
        const std::shared_ptr<Work> all(work.get(), [work](Work*) { work->drop(); });
        auto added = workers_.add(std::vector<base::Workers::Task>(count, [all] { all->make_next(); }));
        if (added) return Progress::pending;
        work->withdraw();
        return added.error();
    }
    Result<Progress> start(Call call, Flight& flight) {
        std::vector<Call> one;
        one.push_back(std::move(call));
        return start(std::move(one), flight);
    }

    // base::Workers::end(): where it is false, what the calls use has to be kept.
    bool end() { return workers_.end(); }

private:
    struct Work final : Withdrawable {
        Work(std::vector<Call> asked, Flight& of) : calls(std::move(asked)), flight(of), left(calls.size()) {}

        void make_next() {
            const std::size_t at = next.fetch_add(1);
            if (at >= calls.size()) return;  // withdrawn
            note(std::exchange(calls[at], nullptr)());
            if (left.fetch_sub(1) == 1) flight.end(first);
        }
        bool withdraw() override {
            const std::size_t from = next.exchange(calls.size());
            if (from >= calls.size()) return false;
            note(Error{ErrorCode::cancelled, "it was withdrawn", {}, {}});
            for (std::size_t at = from; at < calls.size(); ++at) calls[at] = nullptr;
            return left.fetch_sub(calls.size() - from) == calls.size() - from;
        }
        void drop() {
            if (withdraw()) flight.end(first);
        }
        void note(Result<void> result) {
            const std::lock_guard lock(mutex);
            if (first) first = std::move(result);
        }

        std::vector<Call> calls;
        Flight& flight;
        std::atomic<std::size_t> next{0};
        std::atomic<std::size_t> left;  // calls that have not returned
        std::mutex mutex;               // guards the next, until none is left
        Result<void> first;
    };

    base::Workers workers_;
};

}  // namespace sidestep::backend
