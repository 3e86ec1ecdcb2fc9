#include "wire/bridge.hpp"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/try.hpp"
#include "wire/peers.hpp"

namespace sidestep::wire {

Bridge::~Bridge() {
    if (there_ && *there_) from_->tell(Word::detach, to_body((*there_)->region));
}

Result<Attached> Bridge::ask(Peer& from, Peer& to, std::uint64_t region, Bytes size) {
    SIDESTEP_TRY(const std::string lent, to.ask(Word::lend, to_body(region), Peers::in_time()));
    ReachRequest request;
    SIDESTEP_TRY(request.token, parse_token(lent));
    for (const HostPort& at : to.address().at)
        request.addresses += (request.addresses.empty() ? "" : ",") + at.to_string();
    request.size = size;
    // The other node may be waited for there.
    SIDESTEP_TRY(const std::string answer,
                 from.ask(Word::reach, to_body(request), Peers::in_time() + Peers::answer_limit));
    return parse_attached(answer);
}

Result<std::string> Bridge::try_out(Peer& from, Peer& to) {
    SIDESTEP_TRY(Attached there, ask(from, to, 0, 0));
    return std::move(there.way);
}

void Bridge::open() {
    auto there = ask(*from_, *to_, region_, size_);
    std::deque<Waiting> waiting;
    {
        std::lock_guard lock(mutex_);
        there_ = there;
        waiting.swap(waiting_);
    }
    for (const Waiting& one : waiting) {
        const auto sent = there ? send(there->region, one) : Result<void>(there.error());
        if (!sent) one.flight->end(sent);
    }
}

Result<void> Bridge::pass(std::uint64_t from_region, Bytes offset, Bytes size, Bytes to_offset,
                          backend::Flight& flight) {
    const Waiting one{from_region, offset, size, to_offset, &flight};
    std::uint64_t target = 0;
    {
        std::lock_guard lock(mutex_);
        if (!there_) {
            waiting_.push_back(one);
            return {};
        }
        if (!*there_) return there_->error();
        target = (*there_)->region;
    }
    return send(target, one);
}

bool Bridge::failed() const {
    std::lock_guard lock(mutex_);
    return there_ && !*there_;
}

std::string Bridge::note() const {
    std::lock_guard lock(mutex_);
    if (!there_ || !*there_) return {};
    return fmt::format("{} sent them to {} itself, by {}", from_->address().name, to_->address().name,
                       (*there_)->way);
}

}  // namespace sidestep::wire
