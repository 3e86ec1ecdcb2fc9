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
    for (Waiting& one : waiting) {
        const auto sent =
            there ? send(there->region, std::move(one.parts), one.told) : Result<void>(there.error());
        if (!sent) one.told(sent);
    }
}

Result<void> Bridge::pass(std::vector<Part> parts, Session::Told then) {
    std::uint64_t target = 0;
    const Session::Told told = [self = shared_from_this(),
                                then = std::move(then)](const Result<void>& result) {
        if (!result) self->failed_once();
        then(result);
    };
    {
        std::lock_guard lock(mutex_);
        if (!there_) {
            waiting_.push_back({std::move(parts), told});
            return {};
        }
        if (!*there_) return there_->error();
        target = (*there_)->region;
    }
    return send(target, std::move(parts), told);
}

bool Bridge::failed() const {
    std::lock_guard lock(mutex_);
    return broken_ || (there_ && !*there_);
}

void Bridge::failed_once() {
    failures_->fetch_add(1);
    std::lock_guard lock(mutex_);
    broken_ = true;
}

std::string Bridge::note() const {
    Attached there;
    {
        std::lock_guard lock(mutex_);
        if (!there_ || !*there_) return {};
        there = **there_;
    }
    // Another engine may have taken its place; nothing takes that of sockets.
    if (there.way != "tcp") {
        const auto answer = from_->ask(Word::report, to_body(there.region), Peers::in_time());
        const auto told = answer ? parse_report(*answer) : Result<Report>(answer.error());
        if (told && !told->notes.empty()) there.way = told->notes.front();
    }
    return fmt::format("{} sent them to {} itself, by {}", from_->address().name, to_->address().name,
                       there.way);
}

}  // namespace sidestep::wire
