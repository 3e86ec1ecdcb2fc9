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

    // So many frames, with so many bytes, will go together.
    void make_room(std::size_t frames, Bytes bytes) {
        if (frames_.size() + frames > most_frames || bytes_ + bytes > most_bytes) send();
    }
    // `kept` stays until it has been sent.
    void add(backend::Outgoing one, std::shared_ptr<const void> kept = {}) {
        const backend::Frame& frame = one.frame;
        // Where they go is no part of what is brought.
        const bool counts = frame.has_payload() && frame.kind != backend::Frame::Kind::places;
        const Bytes size = counts ? frame.size : 0;
        make_room(1, size);
        frames_.push_back(std::move(one));
        bytes_ += size;
        if (kept && (kept_.empty() || kept_.back() != kept)) kept_.push_back(std::move(kept));
    }
    void send() {
        if (frames_.empty()) return;
        auto sent = told_ ? told_(bytes_) : std::function<void()>();
        if (!kept_.empty())
            sent = [sent = std::move(sent), kept = std::exchange(kept_, {})] {
                if (sent) sent();
            };
        link_->send_all(frames_, std::move(sent));
        frames_.clear();
        bytes_ = 0;
    }

private:
    static constexpr std::size_t most_frames = 256;
    // Each call may have to wake a thread of the link: pieces of 16 KiB moved a fourth slower in calls of 128 KiB (docs/lab-book.md).
    static constexpr Bytes most_bytes = backend::max_push;

    const std::shared_ptr<backend::Link> link_;
    const Told told_;
    std::vector<backend::Outgoing> frames_;
    std::vector<std::shared_ptr<const void>> kept_;
    Bytes bytes_ = 0;
};

}  // namespace sidestep::wire
