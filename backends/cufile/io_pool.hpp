// Threads for calls that block: cuFile's reads and writes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backend/backend.hpp"

namespace sidestep::backends::cufile {

// Any thread may call. The threads start with the first work and end with the pool, which waits for what is
// under way; where something may hang, end() comes first.
class IoPool {
public:
    using Work = std::function<Result<void>()>;

    explicit IoPool(unsigned max_threads) : max_threads_(max_threads) {}
    ~IoPool();

    // Fails with ErrorCode::device_error where too much is under way, or no thread can be had.
    Result<backend::Ticket> start(Work work);
    Result<backend::Progress> poll(backend::Ticket ticket);

    // Drops what nobody has begun, and waits for the rest until a second after the last was begun. False where
    // something hangs then: the pool is kept (base::keep) with all that the work uses. To be called last.
    bool end();

private:
    static constexpr std::size_t max_under_way = 65536;
    static constexpr std::chrono::seconds end_limit{1};
    struct Job {
        Work work;
        std::optional<Result<void>> result;
    };
    void run();

    const unsigned max_threads_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    std::condition_variable work_ended_;  // told while stopping
    std::chrono::steady_clock::time_point last_begun_;
    std::vector<std::thread> threads_;
    std::unordered_map<std::uint64_t, Job> jobs_;
    std::deque<std::uint64_t> waiting_;
    std::uint64_t next_ = 1;
    unsigned busy_ = 0;
    bool stopping_ = false;
};

}  // namespace sidestep::backends::cufile
