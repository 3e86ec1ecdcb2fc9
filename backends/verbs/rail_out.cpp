// What goes out over a queue pair.
#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/verbs/numbers.hpp"
#include "backends/verbs/rail.hpp"
#include "base/try.hpp"

namespace sidestep::backends::verbs {

void Rail::Outgoing::copy_to(unsigned char* to) const {
    if (parts.empty() && size() > 0) std::memcpy(to, payload, size());
    for (const backend::Memory& part : parts) {
        std::memcpy(to, part.address, part.size);
        to += part.size;
    }
}

Result<void> Rail::send(const backend::Frame& frame, const void* payload, std::function<void()> sent) {
    Outgoing out{frame, static_cast<const unsigned char*>(payload), std::move(sent)};
    return queue_and_flush({&out, 1});
}

Result<void> Rail::send_all(std::span<const backend::Outgoing> frames, std::function<void()> sent) {
    std::vector<Outgoing> all;
    backend::count_sent(frames.size(), std::move(sent), [&](std::size_t i, std::function<void()> told) {
        all.push_back({frames[i].frame, static_cast<const unsigned char*>(frames[i].payload), std::move(told),
                       frames[i].parts});
    });
    return queue_and_flush(all);
}

Result<void> Rail::queue_and_flush(std::span<Outgoing> frames) {
    Told told;
    Result<void> done;
    {
        std::lock_guard lock(mutex_);
        if (dead_) return {};
        if (small_.size() + large_.size() + frames.size() > most_waiting)
            return Error{ErrorCode::io_error, "the other machine takes nothing any more", "verbs", {}};
        for (Outgoing& out : frames) {
            const bool large = out.size() > eager_;
            queued_.fetch_add(out.size() + backend::frame_bytes, std::memory_order_relaxed);
            if (!large) ++small_queued_;
            if (out.frame.kind == backend::Frame::Kind::scatter) out.after = small_queued_;
            (large ? large_ : small_).push_back(std::move(out));
        }
        done = flush(told);
    }
    for (const auto& tell : told) tell();
    return done;
}

Result<void> Rail::flush() {
    Told told;
    Result<void> done;
    {
        std::lock_guard lock(mutex_);
        if (!dead_) done = flush(told);
    }
    for (const auto& tell : told) tell();
    return done;
}

Result<void> Rail::flush(Told& told) {
    if (state_ != State::open) return {};
    SIDESTEP_CHECK(send_answers());
    SIDESTEP_CHECK(write_next());
    for (;;) {
        SIDESTEP_TRY(const bool more, send_next(told));
        if (!more) break;
    }
    SIDESTEP_CHECK(give_credits());
    const bool waits = !answers_.empty() || !small_.empty() || !large_.empty();
    if (waits && free_sends_.empty() && !std::exchange(blocked_, true)) {
        // What the card has sent is only seen by whoever looks.
        SIDESTEP_CHECK(arm_all());
        loop_.post(step(&Rail::serve));
    }
    return {};
}

// Few bytes go first, but not always.
Result<bool> Rail::send_next(Told& told) {
    if (credits_ <= kept_back || free_sends_.empty()) return false;
    constexpr unsigned every = 8;
    const bool large_first = ++turns_ % every == 0;
    if (large_first) {
        SIDESTEP_TRY(const bool sent, send_offer());
        if (sent) return true;
    }
    SIDESTEP_TRY(const bool sent, send_small(told));
    if (sent || large_first) return sent;
    return send_offer();
}

Result<bool> Rail::send_small(Told& told) {
    if (small_.empty()) return false;
    Outgoing out = std::move(small_.front());
    small_.pop_front();
    ++small_sent_;
    --credits_;
    SIDESTEP_CHECK(send_message({.kind = Head::Kind::frame}, &out.frame, &out));
    queued_.fetch_sub(out.size() + backend::frame_bytes, std::memory_order_relaxed);
    if (out.sent) told.push_back(std::move(out.sent));
    return true;
}

Result<bool> Rail::send_offer() {
    if (large_.empty() || free_offers_.empty() || large_.front().after > small_sent_) return false;
    const std::uint16_t number = free_offers_.back();
    free_offers_.pop_back();
    OfferOut& offer = offers_out_[number];
    offer.open = true;
    offer.out = std::move(large_.front());
    large_.pop_front();
    if (offer.out.parts.empty()) offer.region = means_->prepared->find(offer.out.payload, offer.out.size());
    --credits_;
    // Who waits for something large does not look.
    if (waits_again_ != 0) SIDESTEP_CHECK(completions_->arm(true));
    SIDESTEP_CHECK(send_message({.kind = Head::Kind::offer, .offer = number}, &offer.out.frame, nullptr));
    return true;
}

// Into a buffer of its own, of which the caller has seen that there is one.
Result<void> Rail::send_message(Head head, const backend::Frame* frame, const Outgoing* payload) {
    const std::size_t index = free_sends_.back();
    free_sends_.pop_back();
    unsigned char* const at = send_buffer(index);
    head.credits = std::exchange(give_back_, std::uint16_t{0});
    to_bytes(head, at);
    std::size_t bytes = head_bytes;
    if (frame != nullptr) {
        const auto said = backend::to_bytes(*frame);
        std::memcpy(at + bytes, said.data(), said.size());
        bytes += said.size();
    }
    if (payload != nullptr) {
        payload->copy_to(at + bytes);
        bytes += payload->size();
    }
    ibv_sge part{reinterpret_cast<std::uintptr_t>(at), static_cast<std::uint32_t>(bytes),
                 region_->local_key()};
    ibv_send_wr request{};
    request.wr_id = static_cast<std::uint64_t>(Work::message) << 32 | index;
    request.sg_list = &part;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SOLICITED;
    if (bytes <= pair_->max_inline()) request.send_flags |= IBV_SEND_INLINE;
    return post(request);
}

Result<void> Rail::send_answers() {
    while (!answers_.empty() && !free_sends_.empty()) {
        const Head head = answers_.front();
        answers_.pop_front();
        SIDESTEP_CHECK(send_message(head, nullptr, nullptr));
    }
    return {};
}

// The other end can always be told: of all that it sent, this end has one credit left for it.
Result<void> Rail::give_credits() {
    if (give_back_ < receives / 2 || credits_ == 0 || free_sends_.empty()) return {};
    --credits_;
    return send_message({.kind = Head::Kind::credits}, nullptr, nullptr);
}

// Offers that the other end has given a place, in the order of its answers; as long as there are buffers for those
// whose memory is not prepared.
Result<void> Rail::write_next() {
    while (!answered_.empty()) {
        const std::uint16_t number = answered_.front();
        OfferOut& offer = offers_out_[number];
        if (!offer.region) {
            SIDESTEP_TRY(offer.bounce, means_->bounces_out->take(nullptr, wake()));
            if (!offer.bounce) return {};
            offer.out.copy_to(offer.bounce->data());
        }
        answered_.pop_front();
        SIDESTEP_CHECK(write(number));
    }
    return {};
}

Result<void> Rail::write(std::uint16_t number) {
    OfferOut& offer = offers_out_[number];
    (offer.region ? means_->counts->direct_out : means_->counts->bounced_out).fetch_add(1);
    const void* const from = offer.region ? offer.out.payload : offer.bounce->data();
    ibv_sge part{reinterpret_cast<std::uintptr_t>(from), static_cast<std::uint32_t>(offer.out.size()),
                 offer.region ? offer.region->region.local_key() : offer.bounce->region.local_key()};
    ibv_send_wr request{};
    request.wr_id = static_cast<std::uint64_t>(Work::write) << 32 | number;
    request.sg_list = &part;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.send_flags = IBV_SEND_SOLICITED;
    put_number(reinterpret_cast<unsigned char*>(&request.imm_data), std::uint32_t{number});
    request.wr.rdma.remote_addr = offer.address;
    request.wr.rdma.rkey = offer.key;
    // Its end has to wake somebody.
    if (++writes_ == 1) SIDESTEP_CHECK(arm_all());
    return post(request);
}

Result<void> Rail::arm_all() {
    return completions_->arm(false);
}

Result<void> Rail::post(ibv_send_wr& request) {
    posted_.fetch_add(1);
    auto done = pair_->send(request);
    if (!done) posted_.fetch_sub(1);
    return done;
}

// Answers what its sender is to be told by.
std::function<void()> Rail::close_offer(std::uint16_t number) {
    OfferOut closed = std::exchange(offers_out_[number], {});
    queued_.fetch_sub(closed.out.size() + backend::frame_bytes, std::memory_order_relaxed);
    free_offers_.push_back(number);
    return [sent = std::move(closed.out.sent), bounce = std::move(closed.bounce),
            region = std::move(closed.region)] {
        if (sent) sent();
    };
}

}  // namespace sidestep::backends::verbs
