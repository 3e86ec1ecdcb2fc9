// A bound on the bytes a second that a node moves for its clients, of each direction by itself.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include <sidestep/units.hpp>
#include "backend/network.hpp"

namespace sidestep::wire {

// A bucket that fills at the rate: what is larger than what is left goes all the same, and leaves a debt. Any thread.
class Pace {
public:
    using Clock = std::chrono::steady_clock;
    enum Direction : std::size_t { in, out };
    // How often wake() is to be called.
    static constexpr std::chrono::milliseconds period{5};

    explicit Pace(Bytes per_second, Clock::time_point now = Clock::now())
        : per_second_(static_cast<double>(per_second)), buckets_{Bucket{now}, Bucket{now}} {}

    // Takes the bytes. False where they have to wait: wake() then calls `again`, without a lock of this, and once even if `who`
    // asked several times.
    bool take(Direction direction, Bytes bytes, const void* who, std::function<void()> again,
              Clock::time_point now = Clock::now()) {
        std::lock_guard lock(mutex_);
        Bucket& bucket = buckets_[direction];
        const std::chrono::duration<double> passed = now - bucket.filled;
        bucket.filled = now;
        bucket.left = std::min(bucket.left + passed.count() * per_second_, most());
        if (bucket.left <= 0) {
            bucket.waiting.insert_or_assign(who, std::move(again));
            return false;
        }
        bucket.left -= static_cast<double>(bytes);
        bucket.served = who;
        return true;
    }
    void give_back(Direction direction, Bytes bytes) {
        std::lock_guard lock(mutex_);
        buckets_[direction].left += static_cast<double>(bytes);
    }
    // Answers how many were called: in turns, since the first of them may take all that there is.
    std::size_t wake() {
        std::size_t called = 0;
        for (Bucket& bucket : buckets_) {
            decltype(bucket.waiting) waiting;
            const void* served = nullptr;
            {
                std::lock_guard lock(mutex_);
                waiting.swap(bucket.waiting);
                served = bucket.served;
            }
            const auto after = waiting.upper_bound(served);
            for (auto one = after; one != waiting.end(); ++one) one->second();
            for (auto one = waiting.begin(); one != after; ++one) one->second();
            called += waiting.size();
        }
        return called;
    }

private:
    struct Bucket {
        Clock::time_point filled;
        double left = 0;
        std::map<const void*, std::function<void()>> waiting{};
        const void* served = nullptr;  // last
    };
    // What may go at once after a pause.
    double most() const { return std::max(static_cast<double>(2 * backend::max_push), per_second_ / 50); }

    const double per_second_;
    std::mutex mutex_;  // guards what follows
    std::array<Bucket, 2> buckets_;
};

}  // namespace sidestep::wire
