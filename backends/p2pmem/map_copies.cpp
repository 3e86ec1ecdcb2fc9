#include "backends/p2pmem/map_copies.hpp"

#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "backends/p2pmem/store_fence.hpp"

namespace sidestep::backends::p2pmem {
namespace {

// Contract: copies of up to this size may be done on the spot.
constexpr Bytes on_the_spot = 64_KiB;
// Far more than a copy has pieces in flight.
constexpr std::size_t max_waiting = 4096;

// Mapped device memory may be write-combining: the fence lets a drive that is told next see all of it.
void copy(void* to, const void* from, Bytes bytes) {
    std::memcpy(to, from, bytes);
    store_fence();
}

}  // namespace

MapCopies::~MapCopies() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
}

Result<backend::Ticket> MapCopies::start(void* to, const void* from, Bytes bytes) {
    if (bytes <= on_the_spot) {
        copy(to, from, bytes);
        return backend::Ticket{};
    }
    std::unique_lock lock(mutex_);
    if (waiting_.size() >= max_waiting)
        return Error{ErrorCode::out_of_memory,
                     fmt::format("{} copies by the CPU are waiting already", max_waiting), "p2pmem backend",
                     "wait for some copies before starting more"};
    if (!thread_.joinable()) {
        try {
            thread_ = std::thread([this] { work(); });
        } catch (const std::system_error&) {  // no more threads allowed: slow, but not wrong
            lock.unlock();
            copy(to, from, bytes);
            return backend::Ticket{};
        }
    }
    const std::uint64_t id = next_;
    next_ += 2;
    waiting_.push_back({to, from, bytes, id});
    unfinished_.insert(id);
    lock.unlock();
    wake_.notify_one();
    return backend::Ticket{id};
}

backend::Progress MapCopies::poll(backend::Ticket ticket) {
    const std::lock_guard lock(mutex_);
    return unfinished_.count(ticket.id) != 0 ? backend::Progress::pending : backend::Progress::done;
}

void MapCopies::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
        if (waiting_.empty()) return;
        const Copy next = waiting_.front();
        waiting_.pop_front();
        lock.unlock();
        copy(next.to, next.from, next.bytes);
        lock.lock();
        unfinished_.erase(next.id);
    }
}

}  // namespace sidestep::backends::p2pmem
