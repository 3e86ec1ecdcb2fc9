// Copies between host memory and mapped device memory by the CPU.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "backend/backend.hpp"

namespace sidestep::backends::p2pmem {

// One thread, started with the first copy that is too long to be made on the spot: loads from such memory
// wait for the bus one by one, and more threads would only keep more processors waiting. Any thread may call.
class MapCopies {
public:
    ~MapCopies();

    // Tickets are odd. Small copies have ended when this returns.
    Result<backend::Ticket> start(void* to, const void* from, Bytes bytes);
    backend::Progress poll(backend::Ticket ticket);

private:
    struct Copy {
        void* to;
        const void* from;
        Bytes bytes;
        std::uint64_t id;
    };
    void work();

    std::mutex mutex_;  // guards what follows, except for the thread
    std::condition_variable wake_;
    std::deque<Copy> waiting_;
    std::unordered_set<std::uint64_t> unfinished_;
    std::uint64_t next_ = 1;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace sidestep::backends::p2pmem
