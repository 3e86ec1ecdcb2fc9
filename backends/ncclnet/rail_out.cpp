// What goes out over a rail.
#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/ncclnet/rail.hpp"
#include "base/try.hpp"

namespace sidestep::backends::ncclnet {

Result<void> Rail::send(const backend::Frame& frame, const void* payload, std::function<void()> sent) {
    const Bytes size = frame.has_payload() ? frame.size : 0;
    Told told;
    Result<void> done;
    {
        const std::lock_guard lock(mutex_);
        if (dead_) return {};
        if (queue_.size() + large_.size() >= most_waiting)
            return Error{ErrorCode::io_error, "the other machine takes nothing any more", "ncclnet", {}};
        const Bytes counted = size + backend::frame_bytes;
        queued_.fetch_add(counted, std::memory_order_relaxed);
        if (size > most_small)
            large_.push_back({frame, const_cast<void*>(payload), std::move(sent)});
        else
            queue_.push_back({to_bytes(Message{Message::Kind::frame, 0, frame}),
                              static_cast<const unsigned char*>(payload), size, 0, counted, std::move(sent)});
        done = flush(told);
    }
    for (const auto& tell : told) tell();
    return done;
}

Result<void> Rail::flush() {
    Told told;
    Result<void> done;
    {
        const std::lock_guard lock(mutex_);
        if (!dead_) done = flush(told);
    }
    for (const auto& tell : told) tell();
    return done;
}

void Rail::say(const Message& message) {
    Outgoing out;
    out.head = to_bytes(message);
    queue_.push_back(std::move(out));
}

Result<void> Rail::flush(Told& told) {
    SIDESTEP_CHECK(give_next());
    offer_next();
    // The loop says when there is room again.
    return out_ ? Result<void>() : write(told);
}

Result<void> Rail::write(Told& told) {
    constexpr std::size_t most_parts = 64;
    std::array<driver::TcpSocket::Part, most_parts> parts;
    bool full = false;
    while (!queue_.empty() && !full) {
        std::size_t count = 0;
        Bytes given = 0;
        for (const Outgoing& out : queue_) {
            if (count + 2 > most_parts || given >= most_a_call) break;
            const Bytes head_gone = std::min<Bytes>(out.gone, message_bytes);
            const Bytes payload_gone = out.gone - head_gone;
            if (head_gone < message_bytes)
                parts[count++] = {out.head.data() + head_gone, message_bytes - head_gone};
            if (payload_gone < out.size)
                parts[count++] = {out.payload + payload_gone, out.size - payload_gone};
            given += message_bytes + out.size - out.gone;
        }
        SIDESTEP_TRY(const Bytes bytes, socket_.send({parts.data(), count}));
        take_off(bytes, told);
        full = bytes < given;
    }
    wait_for(in_, !queue_.empty());
    return {};
}

void Rail::take_off(Bytes bytes, Told& told) {
    while (bytes > 0) {
        Outgoing& out = queue_.front();
        const Bytes step = std::min(bytes, message_bytes + out.size - out.gone);
        out.gone += step;
        bytes -= step;
        if (out.gone < message_bytes + out.size) return;
        queued_.fetch_sub(out.counted, std::memory_order_relaxed);
        if (out.sent) told.push_back(std::move(out.sent));
        queue_.pop_front();
    }
}

void Rail::offer_next() {
    while (!large_.empty() && offers_out_.size() < most_offers) {
        const std::uint16_t number = next_offer_++;
        OfferOut& offer = offers_out_[number];
        offer.out = std::move(large_.front());
        large_.pop_front();
        offer.range = means_->prepared->find(offer.out.payload, offer.out.frame.size);
        say({Message::Kind::offer, number, offer.out.frame});
    }
}

// In the order in which they are wanted, as long as there are buffers for those whose memory is not prepared.
Result<void> Rail::give_next() {
    while (!wanted_.empty()) {
        const std::uint16_t number = wanted_.front();
        OfferOut& offer = offers_out_[number];
        const Bytes size = offer.out.frame.size;
        void* from = offer.out.payload;
        if (!offer.range) {
            SIDESTEP_TRY(offer.bounce, means_->bounces_out->take(nullptr, wake()));
            if (!offer.bounce) return {};
            from = offer.bounce->data.get();
            std::memcpy(from, offer.out.payload, size);
        }
        (offer.range ? means_->counts.direct_out : means_->counts.bounced_out).fetch_add(1);
        wanted_.pop_front();
        means_->pump->post(
            [bulk = bulk_,
             piece = Bulk::Piece{number, from, size, offer.range ? offer.range : offer.bounce->range}] {
                bulk->send(piece);
            });
    }
    return {};
}

// Answers what its sender is to be told by.
std::function<void()> Rail::close_offer(std::uint16_t number) {
    auto node = offers_out_.extract(number);
    if (node.empty()) return [] {};
    queued_.fetch_sub(node.mapped().out.frame.size + backend::frame_bytes, std::memory_order_relaxed);
    return [closed = std::make_shared<OfferOut>(std::move(node.mapped()))] {
        if (closed->out.sent) closed->out.sent();
    };
}

void Rail::wait_for(bool in, bool out) {
    if (dead_ || (in == in_ && out == out_)) return;
    in_ = in;
    out_ = out;
    loop_.change(id_, in, out);
}

}  // namespace sidestep::backends::ncclnet
