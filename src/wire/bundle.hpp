// Frames that go in one call of a link.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backend/network.hpp"

namespace sidestep::wire {

// Sends what is added, in calls of so many frames and so many bytes behind them at most, and the rest as it goes. One thread.
class Bundle {
public:
    // What is to be called when that many bytes have been sent; may be empty.
    using Told = std::function<std::function<void()>(Bytes)>;
    Bundle(std::shared_ptr<backend::Link> link, Told told) : link_(std::move(link)), told_(std::move(told)) {}
    ~Bundle() { send(); }
    Bundle(const Bundle&) = delete;
    Bundle& operator=(const Bundle&) = delete;

    void add(const backend::Frame& frame, const void* payload) {
        const Bytes size = frame.has_payload() ? frame.size : 0;
        if (frames_.size() == most_frames || bytes_ + size > most_bytes) send();
        frames_.push_back({frame, payload});
        bytes_ += size;
    }
    void send() {
        if (frames_.empty()) return;
        link_->send_all(frames_, told_ ? told_(bytes_) : std::function<void()>());
        frames_.clear();
        bytes_ = 0;
    }

private:
    static constexpr std::size_t most_frames = 256;
    // What a socket takes in one call of the kernel.
    static constexpr Bytes most_bytes = Bytes{256} << 10;

    const std::shared_ptr<backend::Link> link_;
    const Told told_;
    std::vector<backend::Outgoing> frames_;
    Bytes bytes_ = 0;
};

}  // namespace sidestep::wire
