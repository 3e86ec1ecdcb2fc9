// What engines share that move the bytes of large frames around the processor: buffers for memory that they cannot reach.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <sidestep/result.hpp>

namespace sidestep::backend {

// How large frames went.
struct LargeFrames {
    std::atomic<std::uint64_t> direct_out{0};   // from where they were
    std::atomic<std::uint64_t> bounced_out{0};  // copied into a buffer first
    std::atomic<std::uint64_t> direct_in{0};
    std::atomic<std::uint64_t> bounced_in{0};
};

// Buffers, a bounded number; each is made when it is first needed. A taker never has more than are left, so one that keeps its
// buffers leaves some to others. Any thread. Lives in a shared_ptr.
template <typename Bounce>
class Bounces : public std::enable_shared_from_this<Bounces<Bounce>> {
public:
    using Make = std::function<Result<std::unique_ptr<Bounce>>()>;
    Bounces(Make make, std::size_t most) : make_(std::move(make)), most_(most) {}

    // Null where none is left for this taker: `again` is called once, when one has come back. An error where there is none at
    // all. `who`: the taker, a session with another machine. Null: one that needs no other machine to give them back, and may
    // have all.
    Result<std::shared_ptr<Bounce>> take(const void* who, std::function<void()> again) {
        const std::lock_guard lock(mutex_);
        const std::size_t left = free_.size() + most_ - all_.size();
        if (const auto has = held_.find(who); has != held_.end() && has->second >= left) {
            waiting_.push_back(std::move(again));
            return std::shared_ptr<Bounce>();
        }
        if (free_.empty() && all_.size() < most_) {
            auto made = make_();
            if (!made && all_.empty()) return made.error();
            if (made) {
                free_.push_back(made->get());
                all_.push_back(std::move(*made));
            } else {
                most_ = all_.size();  // what there is has to do
            }
        }
        if (free_.empty()) {
            waiting_.push_back(std::move(again));
            return std::shared_ptr<Bounce>();
        }
        Bounce* const one = free_.back();
        free_.pop_back();
        if (who != nullptr) ++held_[who];
        return std::shared_ptr<Bounce>(
            one, [self = this->shared_from_this(), who](Bounce* back) { self->give_back(back, who); });
    }

private:
    void give_back(Bounce* bounce, const void* who) {
        std::vector<std::function<void()>> waiting;
        {
            const std::lock_guard lock(mutex_);
            free_.push_back(bounce);
            if (const auto has = held_.find(who); has != held_.end() && --has->second == 0) held_.erase(has);
            waiting.swap(waiting_);
        }
        for (const auto& again : waiting) again();
    }

    const Make make_;
    std::mutex mutex_;  // guards what follows
    std::size_t most_;
    std::vector<std::unique_ptr<Bounce>> all_;
    std::vector<Bounce*> free_;
    std::map<const void*, std::size_t> held_;
    std::vector<std::function<void()>> waiting_;
};

}  // namespace sidestep::backend
