// What comes in over a rail.
#include <cstring>
#include <thread>
#include <utility>

#include "backends/ncclnet/rail.hpp"
#include "base/try.hpp"

namespace sidestep::backends::ncclnet {

using backend::Landing;

// On the loop's thread: the socket can be read or written, or somebody called wake().
Result<void> Rail::serve(backend::LinkOwner& owner) {
    {
        const std::lock_guard lock(mutex_);
        wait_for(in_, false);
    }
    SIDESTEP_CHECK(flush());
    return receive(owner, true);
}

Result<void> Rail::look(backend::LinkOwner& owner) {
    return receive(owner, false);
}

// `must`: if another thread is already looking, it looks once more, because what caused this call wakes no
// one a second time.
Result<void> Rail::receive(backend::LinkOwner& owner, bool must) {
    if (must) again_.store(true);
    do {
        if (receiving_.test_and_set()) {
            // Where this thread itself is at it, a frame that it handles led back here.
            if (!must && receiver_.load() != std::this_thread::get_id()) std::this_thread::yield();
            return {};
        }
        receiver_.store(std::this_thread::get_id());
        again_.store(false);
        Result<void> done;
        if (failed_) done = Error{ErrorCode::io_error, "the connection has failed", "ncclnet", {}};
        if (done) done = take_in(owner);
        failed_ = !done;
        receiving_.clear();
        if (!done) return done;
    } while (again_.load());
    return {};
}

Result<void> Rail::take_in(backend::LinkOwner& owner) {
    int reads = 0;
    for (;;) {
        SIDESTEP_TRY(const bool took, take(owner));
        if (took) continue;
        if (may_read() && reads++ < most_reads) {
            SIDESTEP_TRY(const bool came, read());
            if (came) continue;
        }
        SIDESTEP_TRY(const bool asked, ask_again(owner));
        if (!asked) break;
    }
    {
        const std::lock_guard lock(mutex_);
        wait_for(small_later_ < most_small_later, out_);
    }
    SIDESTEP_CHECK(grant_waiting(owner));
    return flush();
}

bool Rail::may_read() const {
    const std::lock_guard lock(mutex_);
    return small_later_ < most_small_later;
}

Result<bool> Rail::read() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    SIDESTEP_TRY(const auto came, socket_.receive(buffer_.data() + end_, buffer_.size() - end_));
    if (!came) return false;
    if (*came == 0) return Error{ErrorCode::io_error, "the other machine hung up", "ncclnet", {}};
    end_ += *came;
    return true;
}

// One message, if it is whole; false where there is none to be taken now.
Result<bool> Rail::take(backend::LinkOwner& owner) {
    const std::size_t there = end_ - begin_;
    if (!greeted_) {
        if (there < greeting_bytes) return false;
        SIDESTEP_CHECK(take_greeting());
        return true;
    }
    if (there < message_bytes || !may_read()) return false;
    SIDESTEP_TRY(const Message message, parse_message(buffer_.data() + begin_));
    if (there < message_bytes + message.follows()) return false;
    begin_ += message_bytes;
    SIDESTEP_CHECK(message.has_frame() ? take_frame(owner, message) : take_answer(message));
    return true;
}

Result<void> Rail::take_greeting() {
    SIDESTEP_TRY(const Greeting theirs, parse_greeting(buffer_.data() + begin_));
    SIDESTEP_CHECK(check_same_plugin(mine_, theirs));
    begin_ += greeting_bytes;
    greeted_ = true;
    gpus_ = theirs.gpus;
    joined_.store(true);
    means_->pump->post([bulk = bulk_, handle = theirs.handle] { bulk->join(handle); });
    return {};
}

Result<void> Rail::take_frame(backend::LinkOwner& owner, const Message& message) {
    const unsigned char* const bytes = buffer_.data() + begin_;
    begin_ += message.follows();
    if (message.kind == Message::Kind::frame) {
        if (!message.frame.has_payload()) return owner.arrived(message.frame, {});
        return ask(owner, {message.frame}, bytes);
    }
    {
        const std::lock_guard lock(mutex_);
        if (offers_in_.size() >= most_offers_in) return no_sense("more offers than it may");
        OfferIn offer;
        offer.frame = message.frame;
        if (!offers_in_.emplace(message.offer, std::move(offer)).second) return no_sense("an offer twice");
    }
    return ask(owner, {message.frame, message.offer}, nullptr);
}

Result<void> Rail::take_answer(const Message& message) {
    std::function<void()> tell;
    {
        const std::lock_guard lock(mutex_);
        const auto found = offers_out_.find(message.offer);
        if (found == offers_out_.end() || found->second.wanted) return no_sense("an answer to no offer");
        if (message.kind == Message::Kind::here) {
            found->second.wanted = true;
            wanted_.push_back(message.offer);
        } else {
            tell = close_offer(message.offer);
        }
    }
    if (tell) tell();
    return {};
}

// `bytes` of a small frame; they are copied where it has to wait.
Result<void> Rail::ask(backend::LinkOwner& owner, Asked asked, const unsigned char* bytes) {
    for (;;) {
        const unsigned resumed = resumed_.load();
        SIDESTEP_TRY(Landing landing, owner.landing(asked.frame));
        if (landing.kind != Landing::Kind::later) {
            if (asked.offer) return land_offer(owner, asked, std::move(landing));
            const void* const from =
                asked.bytes.empty() ? bytes : static_cast<const void*>(asked.bytes.data());
            if (landing.kind == Landing::Kind::here && asked.frame.size > 0)
                std::memcpy(landing.address, from, asked.frame.size);
            return owner.arrived(asked.frame, std::move(landing));
        }
        const std::lock_guard lock(mutex_);
        if (resumed_.load() != resumed) continue;  // somebody called resume() since
        if (!asked.offer && asked.bytes.empty())
            asked.bytes.assign(reinterpret_cast<const char*>(bytes), asked.frame.size);
        if (!asked.offer) ++small_later_;
        later_.push_back(std::move(asked));
        return {};
    }
}

bool Rail::resume(bool all) {
    const std::lock_guard lock(mutex_);
    resumed_.fetch_add(1);
    if (dead_ || later_.size() <= to_ask_) return false;
    to_ask_ = all ? later_.size() : to_ask_ + 1;
    loop_.post([go = run_, this] { go([this](backend::LinkOwner& owner) { return serve(owner); }); });
    return true;
}

// Whether anybody was.
Result<bool> Rail::ask_again(backend::LinkOwner& owner) {
    for (bool any = false;; any = true) {
        Asked asked;
        {
            const std::lock_guard lock(mutex_);
            if (to_ask_ == 0 || later_.empty()) return any;
            --to_ask_;
            asked = std::move(later_.front());
            later_.pop_front();
            if (!asked.offer) --small_later_;
        }
        SIDESTEP_CHECK(ask(owner, std::move(asked), nullptr));
    }
}

Result<void> Rail::land_offer(backend::LinkOwner& owner, const Asked& asked, Landing landing) {
    const std::uint16_t number = *asked.offer;
    {
        const std::lock_guard lock(mutex_);
        if (landing.kind == Landing::Kind::nowhere) {
            offers_in_.erase(number);
            say({.kind = Message::Kind::nowhere, .offer = number});
        } else {
            OfferIn& offer = offers_in_[number];
            offer.range = means_->prepared->find(landing.address, asked.frame.size);
            offer.landing = std::move(landing);
            waits_for_bounce_.push_back(number);
            return {};
        }
    }
    return owner.arrived(asked.frame, std::move(landing));
}

// In their order, as long as there are buffers for those whose memory is not prepared.
Result<void> Rail::grant_waiting(const backend::LinkOwner& owner) {
    const std::lock_guard lock(mutex_);
    while (!dead_ && !waits_for_bounce_.empty()) {
        const std::uint16_t number = waits_for_bounce_.front();
        OfferIn& offer = offers_in_[number];
        void* to = offer.landing.address;
        if (!offer.range) {
            SIDESTEP_TRY(offer.bounce, means_->bounces_in->take(&owner, wake()));
            if (!offer.bounce) return {};
            to = offer.bounce->data.get();
        }
        waits_for_bounce_.pop_front();
        offer.given = true;
        const auto& range = offer.range ? offer.range : offer.bounce->range;
        means_->pump->post([bulk = bulk_, piece = Bulk::Piece{number, to, offer.frame.size, range}] {
            bulk->receive(piece);
        });
    }
    return {};
}

// On the pump's thread.
Result<void> Rail::take_bytes(backend::LinkOwner& owner, std::uint16_t number) {
    decltype(offers_in_)::node_type node;
    {
        const std::lock_guard lock(mutex_);
        if (!dead_) node = offers_in_.extract(number);
    }
    if (node.empty()) return {};
    OfferIn& offer = node.mapped();
    (offer.bounce ? means_->counts.bounced_in : means_->counts.direct_in).fetch_add(1);
    if (offer.bounce) std::memcpy(offer.landing.address, offer.bounce->data.get(), offer.frame.size);
    offer.bounce.reset();
    return owner.arrived(offer.frame, std::move(offer.landing));
}

}  // namespace sidestep::backends::ncclnet
