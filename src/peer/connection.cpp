#include "peer/connection.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::peer {
namespace {

using Clock = std::chrono::steady_clock;

// The importer's thread answers a waiting caller, but may be busy unmapping withdrawn memory. So the caller
// itself listens this often.
constexpr std::chrono::milliseconds own_look{5};
// More messages than a socket holds.
constexpr int most_messages_at_once = 8192;

Result<Offered> answer_of(const Message& said, driver::LocalMessage received) {
    const auto wrong = [](ErrorCode code, std::string what) {
        return Error{code, std::move(what), "published memory", {}};
    };
    if (said.word == Word::welcome) return Offered{};
    if (said.word == Word::refused) return wrong(ErrorCode::out_of_memory, said.text);
    if (said.word == Word::absent) return wrong(ErrorCode::not_found, "its process has withdrawn it");
    SIDESTEP_TRY(MemoryOffer offer, parse_offer(said.text));
    if (received.lost_descriptor)
        return wrong(ErrorCode::out_of_memory, "this process may open no more files (ulimit -n)");
    if (offer.has_descriptor != static_cast<bool>(received.descriptor))
        return wrong(ErrorCode::io_error,
                     "the publisher's message lacks its descriptor, or has one too many");
    return Offered{std::move(offer), std::move(received.descriptor)};
}

}  // namespace

Result<std::shared_ptr<Connection>> Connection::open(const std::string& path, Time until,
                                                     std::shared_ptr<const driver::Waker> waker) {
    SIDESTEP_TRY(driver::LocalSocket socket, driver::LocalSocket::connect(path, until));
    SIDESTEP_TRY(const auto peer, socket.peer());
    if (peer.user != ::geteuid())
        return Error{ErrorCode::permission_denied,
                     fmt::format("it is published by user {}, not by {}", peer.user, ::geteuid()), path,
                     "memory is shared among processes of one user"};
    auto process = socket.watch_peer();
    // Where the kernel, or who confines this process, does not let it be watched, the socket's end has to do.
    if (!process && process.error().code != ErrorCode::unsupported &&
        process.error().code != ErrorCode::permission_denied)
        return process.error();
    const bool same = peer.process != 0 && peer.process == ::getpid();
    return std::shared_ptr<Connection>(new Connection(
        std::move(socket), process ? std::move(*process) : driver::Fd(), same, std::move(waker)));
}

Result<void> Connection::enter(Time until) {
    SIDESTEP_CHECK(await(0, until));
    return {};
}

Result<Offered> Connection::ask(const std::string& name, Time until) {
    std::uint64_t question = 0;
    {
        const std::lock_guard lock(mutex_);
        question = ++questions_;
        awaited_[question];
    }
    const auto sent = socket_.send(to_message({Word::ask, question, name}));
    // Where it could not be, what the publisher has said last says why.
    return await(question, sent ? until : Clock::now());
}

Result<Offered> Connection::await(std::uint64_t question, Time until) {
    std::unique_lock lock(mutex_);
    for (;;) {
        hear();
        const auto found = awaited_.find(question);
        const bool late = Clock::now() >= until;
        if (!found->second && !end_ && !late) {
            heard_.wait_until(lock, std::min(until, Clock::now() + own_look));
            continue;
        }
        auto answer = std::move(found->second);
        awaited_.erase(found);
        if (answer) return std::move(*answer);
        if (end_) return *end_;
        return Error{ErrorCode::timed_out, "the other process says nothing", "published memory",
                     "it hangs, or is stopped"};
    }
}

void Connection::listen() {
    const std::lock_guard lock(mutex_);
    hear();
}

// With the mutex held.
void Connection::hear() {
    for (int heard = 0; heard < most_messages_at_once && !end_; ++heard) {
        std::array<pollfd, 2> polled{{{number(), POLLIN, 0}, {process(), POLLIN, 0}}};
        if (::poll(polled.data(), polled.size(), 0) <= 0) return;
        if (polled[0].revents == 0)
            return end({ErrorCode::not_found, "its process has ended", "published memory", {}});
        auto received =
            socket_.receive(longest_message, Clock::now(), driver::LocalSocket::Descriptor::optional);
        if (!received && received.error().code == ErrorCode::timed_out) return;
        const auto taken = received ? take(std::move(*received)) : Result<void>(received.error());
        if (!taken) end(taken.error());
        heard_.notify_all();
    }
}

// Whatever is no answer ends the connection.
Result<void> Connection::take(driver::LocalMessage received) {
    SIDESTEP_TRY(const Message said, parse_message(received.bytes));
    if (said.word == Word::withdrawn) {
        news_ |= offered_.erase(said.number) > 0;
        if (news_) waker_->wake();
        return {};
    }
    const bool begins = said.word == Word::welcome;
    if (said.word == Word::ask || (said.word != Word::refused && begins != (said.number == 0)))
        return Error{ErrorCode::io_error, "the publisher answers what nobody asked", "published memory", {}};
    if (begins) file_id_ = said.text;
    const auto awaited = awaited_.find(said.number);
    if (awaited == awaited_.end()) return {};  // too late
    auto answer = answer_of(said, std::move(received));
    if (answer && !begins) offered_.insert(answer->offer.publication);
    awaited->second = std::move(answer);
    return {};
}

void Connection::end(Error why) {
    end_ = std::move(why);
    offered_.clear();
    news_ = true;
    socket_.shut_down();
    waker_->wake();
    heard_.notify_all();
}

bool Connection::leads_to(const std::string& file_id) const {
    const std::lock_guard lock(mutex_);
    return !end_ && !file_id.empty() && file_id_ == file_id;
}

bool Connection::lasts(std::uint64_t publication) const {
    const std::lock_guard lock(mutex_);
    return offered_.contains(publication);
}

bool Connection::closed() const {
    const std::lock_guard lock(mutex_);
    return end_.has_value();
}

bool Connection::take_news() {
    const std::lock_guard lock(mutex_);
    return std::exchange(news_, false);
}

}  // namespace sidestep::peer
