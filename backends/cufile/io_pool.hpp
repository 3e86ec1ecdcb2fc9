// Threads for calls that block: cuFile's reads and writes.
#pragma once

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
// under way.
class IoPool {
public:
    using Work = std::function<Result<void>()>;

    explicit IoPool(unsigned max_threads) : max_threads_(max_threads) {}
    ~IoPool();

    // Fails with ErrorCode::device_error where too much is under way, or no thread can be had.
    Result<backend::Ticket> start(Work work);
    Result<backend::Progress> poll(backend::Ticket ticket);

private:
    static constexpr std::size_t max_under_way = 65536;
    struct Job {
        Work work;
        std::optional<Result<void>> result;
    };
    void run();

    const unsigned max_threads_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    std::vector<std::thread> threads_;
    std::unordered_map<std::uint64_t, Job> jobs_;
    std::deque<std::uint64_t> waiting_;
    std::uint64_t next_ = 1;
    unsigned busy_ = 0;
    bool stopping_ = false;
};

}  // namespace sidestep::backends::cufile
