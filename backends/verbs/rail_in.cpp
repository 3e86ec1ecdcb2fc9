// What comes in over a queue pair.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "backends/verbs/numbers.hpp"
#include "backends/verbs/rail.hpp"
#include "base/try.hpp"

namespace sidestep::backends::verbs {

using backend::Landing;

namespace {

Error no_sense(const char* what) {
    return Error{ErrorCode::io_error, fmt::format("the other machine sent {}", what), "verbs", {}};
}

void copy_to(const Landing& landing, const unsigned char* from, Bytes size) {
    if (landing.parts.empty() && size > 0) std::memcpy(landing.address, from, size);
    for (const backend::Memory& part : landing.parts) {
        std::memcpy(part.address, from, part.size);
        from += part.size;
    }
}

}  // namespace

// On the loop's thread: what a completion woke. While others look, they are quicker, and each completion that wakes
// this thread too makes them slower: it leaves it to them, until none has looked for a while.
Result<void> Rail::serve(backend::LinkOwner& owner) {
    {
        std::lock_guard lock(mutex_);
        if (dead_) return {};
        completions_->take_events();
        const unsigned looks = looks_.load(std::memory_order_relaxed);
        if (looks == std::exchange(looks_seen_, looks) || writes_ > 0 || blocked_) {
            SIDESTEP_CHECK(completions_->arm(writes_ == 0 && !blocked_));
        } else if (waits_again_ == 0) {
            waits_again_ = loop_.every(std::chrono::milliseconds(1), step(&Rail::wait_again));
        }
    }
    return turn(owner, true);
}

Result<void> Rail::wait_again(backend::LinkOwner& owner) {
    driver::EventLoop::Id over = 0;
    {
        std::lock_guard lock(mutex_);
        const unsigned looks = looks_.load(std::memory_order_relaxed);
        if (dead_ || looks != std::exchange(looks_seen_, looks)) return {};
        over = std::exchange(waits_again_, 0);
        SIDESTEP_CHECK(completions_->arm(writes_ == 0 && !blocked_));
    }
    if (over != 0) loop_.remove(over);
    return turn(owner, true);
}

// `must`: whoever is in there already looks once more, since what made this call wakes nobody again.
Result<void> Rail::turn(backend::LinkOwner& owner, bool must) {
    if (!made_.load()) return {};
    if (must) again_.store(true);
    do {
        if (polling_.test_and_set()) {
            if (!must) std::this_thread::yield();
            return {};
        }
        const bool all = again_.exchange(false);
        Result<void> done;
        if (failed_) done = Error{ErrorCode::io_error, "the connection has failed", "verbs", {}};
        if (done) done = drain(owner, all);
        failed_ = !done;
        polling_.clear();
        if (!done) return done;
    } while (again_.load());
    return {};
}

// `all`: also what waits for something else than the card, of which somebody has told. Most looks find nothing, and are to
// take no time.
Result<void> Rail::drain(backend::LinkOwner& owner, bool all) {
    constexpr int most_batches = 64;  // others are served too
    const bool told = all;
    std::array<ibv_wc, 16> entries;
    for (int batch = 0; batch < most_batches; ++batch) {
        SIDESTEP_TRY(const std::size_t count,
                     completions_->poll(entries.data(), static_cast<int>(entries.size())));
        if (count == 0 && !all) return {};
        posted_.fetch_sub(static_cast<std::int64_t>(count));
        const std::span came(entries.data(), count);
        const auto says_why = [](const ibv_wc& entry) { return entry.status != IBV_WC_WR_FLUSH_ERR; };
        // Of several that failed the first that says why.
        if (!std::all_of(came.begin(), came.end(), says_why))
            std::stable_partition(came.begin(), came.end(), says_why);
        for (const ibv_wc& entry : came) SIDESTEP_CHECK(take(owner, entry));
        if (std::exchange(all, false)) {
            SIDESTEP_CHECK(ask_again(owner));
            SIDESTEP_CHECK(grant_waiting(owner));
        }
        // Whoever waits for these is answered before more are taken in.
        SIDESTEP_CHECK(flush());
        if (count < entries.size()) return told ? check_silence() : Result<void>();
    }
    wake()();
    return {};
}

Result<void> Rail::take(backend::LinkOwner& owner, const ibv_wc& entry) {
    if (entry.status != IBV_WC_SUCCESS)
        return Error{ErrorCode::io_error,
                     fmt::format("the RDMA connection to the other machine broke: {}",
                                 card_.context->verbs().wc_status_str(entry.status)),
                     means_->name(),
                     {}};
    const auto work = static_cast<Work>(entry.wr_id >> 32);
    const auto index = static_cast<std::uint32_t>(entry.wr_id);
    if (work == Work::receive) {
        if ((entry.wc_flags & IBV_WC_WITH_IMM) == 0) return take_message(owner, index, entry.byte_len);
        SIDESTEP_CHECK(post_receive(index, false));
        const auto number =
            get_number<std::uint32_t>(reinterpret_cast<const unsigned char*>(&entry.imm_data));
        return take_written(owner, number, entry.byte_len);
    }
    std::function<void()> tell;
    {
        std::lock_guard lock(mutex_);
        if (work == Work::message) {
            free_sends_.push_back(index);
            blocked_ = false;
        } else if (work == Work::write) {
            --writes_;
            tell = close_offer(static_cast<std::uint16_t>(index));
        } else {
            probing_ = false;
        }
    }
    if (tell) tell();
    return {};
}

Result<void> Rail::take_message(backend::LinkOwner& owner, std::size_t buffer, std::size_t size) {
    if (size < head_bytes) return no_sense("a message that is too short");
    SIDESTEP_TRY(const Head head, parse_head(receive_buffer(buffer)));
    {
        std::lock_guard lock(mutex_);
        if (head.credits > agreed_.receives - credits_) return no_sense("more credits than there are");
        credits_ = static_cast<std::uint16_t>(credits_ + head.credits);
    }
    switch (head.kind) {
        case Head::Kind::frame:
        case Head::Kind::offer:
            return take_frame(owner, head, buffer, size);
        case Head::Kind::here:
        case Head::Kind::nowhere:
            SIDESTEP_CHECK(post_receive(buffer, false));
            return take_answer(head);
        case Head::Kind::credits:
            break;
    }
    return post_receive(buffer, true);
}

Result<void> Rail::take_frame(backend::LinkOwner& owner, const Head& head, std::size_t buffer,
                              std::size_t size) {
    if (size < head_bytes + backend::frame_bytes) return no_sense("a frame that is too short");
    SIDESTEP_TRY(const backend::Frame frame, backend::parse_frame(receive_buffer(buffer) + head_bytes));
    const Bytes follows = size - head_bytes - backend::frame_bytes;
    if (head.kind == Head::Kind::frame) {
        if (follows != (frame.has_payload() ? frame.size : 0))
            return no_sense("a frame with other bytes than its own");
        if (frame.has_payload()) return ask(owner, {frame, false, buffer});
        SIDESTEP_CHECK(post_receive(buffer, true));
        return owner.arrived(frame, {});
    }
    SIDESTEP_CHECK(post_receive(buffer, true));
    if (follows != 0 || !frame.has_payload() || frame.size == 0 || head.offer >= most_open ||
        offers_in_[head.offer].state != OfferIn::State::none)
        return no_sense("an offer that makes no sense");
    offers_in_[head.offer].state = OfferIn::State::asked;
    offers_in_[head.offer].frame = frame;
    return ask(owner, {frame, true, head.offer});
}

Result<void> Rail::ask(backend::LinkOwner& owner, Asked asked) {
    for (;;) {
        const unsigned resumed = resumed_.load();
        SIDESTEP_TRY(Landing landing, owner.landing(asked.frame));
        if (landing.kind != Landing::Kind::later)
            return asked.offer ? land_offer(owner, asked, std::move(landing))
                               : land_message(owner, asked, std::move(landing));
        std::lock_guard lock(mutex_);
        if (resumed_.load() != resumed) continue;  // somebody called resume() since
        later_.push_back(asked);
        return {};
    }
}

bool Rail::resume(bool all) {
    std::lock_guard lock(mutex_);
    resumed_.fetch_add(1);
    if (dead_ || later_.size() <= to_ask_) return false;
    to_ask_ = all ? later_.size() : to_ask_ + 1;
    loop_.post(step(&Rail::serve));
    return true;
}

Result<void> Rail::ask_again(backend::LinkOwner& owner) {
    for (;;) {
        Asked asked;
        {
            std::lock_guard lock(mutex_);
            if (to_ask_ == 0 || later_.empty()) return {};
            --to_ask_;
            asked = later_.front();
            later_.pop_front();
        }
        SIDESTEP_CHECK(ask(owner, asked));
    }
}

Result<void> Rail::land_message(backend::LinkOwner& owner, const Asked& asked, Landing landing) {
    if (landing.kind == Landing::Kind::here)
        copy_to(landing, receive_buffer(asked.index) + head_bytes + backend::frame_bytes, asked.frame.size);
    SIDESTEP_CHECK(post_receive(asked.index, true));
    return owner.arrived(asked.frame, std::move(landing));
}

Result<void> Rail::land_offer(backend::LinkOwner& owner, const Asked& asked, Landing landing) {
    OfferIn& offer = offers_in_[asked.index];
    if (landing.kind == Landing::Kind::nowhere) {
        offer = {};
        answer({.kind = Head::Kind::nowhere, .offer = static_cast<std::uint16_t>(asked.index)});
        return owner.arrived(asked.frame, std::move(landing));
    }
    offer.landing = std::move(landing);
    if (offer.landing.parts.empty())
        offer.region = means_->prepared->find(offer.landing.address, offer.frame.size);
    offer.state = OfferIn::State::waits;
    if (!offer.region && !waits_for_bounce_.empty()) {
        waits_for_bounce_.push_back(asked.index);  // not before others
        return {};
    }
    return grant(owner, asked.index);
}

Result<void> Rail::grant(const backend::LinkOwner& owner, std::size_t number) {
    OfferIn& offer = offers_in_[number];
    if (!offer.region) {
        SIDESTEP_TRY(offer.bounce, means_->bounces_in->take(&owner, wake()));
        if (!offer.bounce) {
            waits_for_bounce_.push_back(number);
            return {};
        }
        offer.given = std::chrono::steady_clock::now();
    }
    offer.state = OfferIn::State::granted;
    const void* const to = offer.region ? offer.landing.address : offer.bounce->data();
    answer({.kind = Head::Kind::here,
            .offer = static_cast<std::uint16_t>(number),
            .address = reinterpret_cast<std::uintptr_t>(to),
            .key = offer.region ? offer.region->region.remote_key() : offer.bounce->region.remote_key()});
    return {};
}

// In their order, as long as there are buffers.
Result<void> Rail::grant_waiting(const backend::LinkOwner& owner) {
    auto waiting = std::exchange(waits_for_bounce_, {});
    for (std::size_t i = 0; i < waiting.size(); ++i) {
        SIDESTEP_CHECK(grant(owner, waiting[i]));
        if (waits_for_bounce_.empty()) continue;
        waits_for_bounce_.assign(waiting.begin() + static_cast<std::ptrdiff_t>(i), waiting.end());
        break;
    }
    return {};
}

// Whoever is given a buffer sends at once: others wait for it. What has come by now has been taken in.
Result<void> Rail::check_silence() const {
    const auto since = std::chrono::steady_clock::now() - means_->silence;
    const auto kept = [&](const OfferIn& offer) { return offer.bounce && offer.given < since; };
    if (std::none_of(offers_in_.begin(), offers_in_.end(), kept)) return {};
    return Error{ErrorCode::timed_out,
                 "the other machine was given a place for its bytes, and has not sent them",
                 means_->name(),
                 {}};
}

Result<void> Rail::take_answer(const Head& head) {
    if (head.offer >= most_open) return no_sense("an answer to no offer");
    std::function<void()> tell;
    {
        std::lock_guard lock(mutex_);
        OfferOut& offer = offers_out_[head.offer];
        if (!offer.open || offer.answered) return no_sense("an answer to no offer");
        offer.answered = true;
        offer.address = head.address;
        offer.key = head.key;
        if (head.kind == Head::Kind::here)
            answered_.push_back(head.offer);
        else
            tell = close_offer(head.offer);
    }
    if (tell) tell();
    return {};
}

Result<void> Rail::take_written(backend::LinkOwner& owner, std::uint32_t number, Bytes size) {
    if (number >= most_open || offers_in_[number].state != OfferIn::State::granted ||
        offers_in_[number].frame.size != size)
        return no_sense("bytes that nobody gave a place");
    OfferIn offer = std::exchange(offers_in_[number], {});
    (offer.region ? means_->counts->direct_in : means_->counts->bounced_in).fetch_add(1);
    if (offer.bounce) copy_to(offer.landing, offer.bounce->data(), size);
    offer.bounce.reset();
    return owner.arrived(offer.frame, std::move(offer.landing));
}

// Goes out with the next flush, of which one follows.
void Rail::answer(const Head& head) {
    std::lock_guard lock(mutex_);
    answers_.push_back(head);
}

// `counts`: the other end has one more credit.
Result<void> Rail::post_receive(std::size_t buffer, bool counts) {
    ibv_sge part{reinterpret_cast<std::uintptr_t>(receive_buffer(buffer)),
                 static_cast<std::uint32_t>(buffer_bytes), region_->local_key()};
    ibv_recv_wr request{};
    request.wr_id = static_cast<std::uint64_t>(Work::receive) << 32 | buffer;
    request.sg_list = &part;
    request.num_sge = 1;
    posted_.fetch_add(1);
    if (auto done = pair_->receive(request); !done) {
        posted_.fetch_sub(1);
        return done;
    }
    if (!counts) return {};
    std::lock_guard lock(mutex_);
    ++give_back_;
    return {};
}

}  // namespace sidestep::backends::verbs
