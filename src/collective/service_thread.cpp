#include "collective/service_thread.hpp"

#include <poll.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/try.hpp"

namespace sidestep::collective {
namespace {

using Clock = std::chrono::steady_clock;

// Faults and the board are looked at this often.
constexpr int service_pause_ms = 10;
// Whether lent memory is still there costs a question to the driver for each allocation: it is asked as often as
// takes a hundredth of the thread's time.
constexpr int look_share = 100;
// How often the rows of all ranks are written to the board's copy, where they have changed.
constexpr std::chrono::milliseconds show_pause{100};
// Of what waits to be sent, for each rank.
constexpr std::size_t max_outgoing = 8192;
constexpr unsigned messages_at_once = 64;

std::uint64_t packed(unsigned rank, ErrorCode code) {
    return (std::uint64_t{rank} + 1) | static_cast<std::uint64_t>(code) << 8;
}

}  // namespace

ServiceThread::ServiceThread(std::unique_ptr<RankResources> own)
    : own_(std::move(own)), peers_(own_->ranks), outbox_(own_->ranks), exchanges_(surroundings()) {}

Exchanges::Surroundings ServiceThread::surroundings() {
    return {own_->rank,
            own_->ranks,
            [this](unsigned rank, Message message) {
                queue(rank, std::move(message));
                wake();
            },
            [this](unsigned rank) { return absent(rank); },
            [this](unsigned rank) { return own_->name_of_rank(rank); },
            [this] { return own_->verdict.status(); }};
}

void ServiceThread::join() {
    const std::lock_guard lock(joining_);
    if (thread_.joinable()) thread_.join();
}

ServiceThread::~ServiceThread() {
    if (forked()) {
        ending::keep(new std::thread(std::move(thread_)));
        ending::keep(own_.release());
        return;
    }
    if (thread_.joinable() && !begun_) started_.set_value(false);
    join();
    ending::remove(*this);
    if (ending::begun()) ending::keep(own_.release());
}

Result<void> ServiceThread::prepare() {
    SIDESTEP_TRY(driver::Waker waker, driver::Waker::create());
    waker_ = std::make_unique<driver::Waker>(std::move(waker));
    auto thread = base::start_thread(
        [this, started = std::shared_future<bool>(started_.get_future())] {
            if (started.get()) serve();
        },
        "group");
    if (!thread) return thread.error();
    thread_ = std::move(*thread);
    return {};
}

void ServiceThread::start() {
    for (unsigned rank = 0; rank < own_->ranks; ++rank) {
        if (!own_->contacts[rank] || own_->contacts[rank]->same_process) continue;
        if (auto watched = own_->contacts[rank]->socket.watch_peer())
            peers_[rank].process = std::move(*watched);
    }
    if (own_->seat->ended()) own_->board->file().rows[own_->rank].counts.store(1);
    ending::add(*this);
    begun_ = true;
    started_.set_value(true);
}

void ServiceThread::serve() {
    auto next_look = Clock::now();
    while (!all_let_go()) {
        wait_for_news();
        if (ending::begun()) {
            (void)note_ended();  // what has not is told to the others by it
            own_->seat->halt();
            return finished_.store(true, std::memory_order_release);
        }
        settle_fault();
        look_at_board();
        (void)idle();  // notes what has ended
        const bool working = !own_->verdict.failed();
        if (working) tell_of_stall();
        if (const auto now = Clock::now(); working && now >= next_look) {
            own_->reachability->look();
            next_look = now + look_share * (Clock::now() - now);
        }
        if (working)
            own_->reachability->work([this](unsigned rank, Message message, int descriptor, auto keeps) {
                queue(rank, std::move(message), descriptor, std::move(keeps));
            });
        show_board();
        release_departed();
        flush();
    }
    end();
}

// Its own row often, and now and then those of ranks that may be stopped.
void ServiceThread::show_board() {
    own_->board->show();
    if (const auto now = Clock::now(); now >= next_show_) {
        own_->board->show_all();
        next_show_ = now + show_pause;
    }
}

void ServiceThread::wait_for_news() {
    std::vector<pollfd> entries{{waker_->number(), POLLIN, 0}};
    bool full = false;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& queue : outbox_) full = full || !queue.empty();
    }
    for (unsigned rank = 0; rank < own_->ranks; ++rank) {
        const bool open = own_->contacts[rank] && !peers_[rank].closed;
        entries.push_back({open ? own_->contacts[rank]->socket.number() : -1, POLLIN, 0});
        entries.push_back({open && peers_[rank].process ? peers_[rank].process.get() : -1, POLLIN, 0});
    }
    ::poll(entries.data(), entries.size(), full ? 1 : service_pause_ms);
    if (entries[0].revents != 0) waker_->clear();
    for (unsigned rank = 0; rank < own_->ranks; ++rank) {
        if (!own_->contacts[rank]) continue;
        if (entries[1 + 2 * rank].revents != 0 || !own_->contacts[rank]->early.empty()) read_messages(rank);
        // What it still said has been read by now.
        if (entries[2 + 2 * rank].revents != 0 && !peers_[rank].closed) {
            read_messages(rank);
            on_disconnect(rank);
        }
    }
}

void ServiceThread::read_messages(unsigned rank) {
    Contact& contact = *own_->contacts[rank];
    for (unsigned count = 0; count < messages_at_once && !peers_[rank].closed; ++count) {
        driver::LocalMessage message;
        if (!contact.early.empty()) {
            message = std::move(contact.early.front());
            contact.early.pop_front();
        } else {
            auto received = contact.socket.receive(longest_message, Clock::now(),
                                                   driver::LocalSocket::Descriptor::optional);
            if (!received && received.error().code == ErrorCode::timed_out) return;
            if (!received) {
                if (received.error().code == ErrorCode::io_error) fail(contact.nonsense(received.error()));
                return on_disconnect(rank);
            }
            message = std::move(*received);
        }
        const auto parsed = parse_message(message.bytes);
        if (!parsed) return fail(contact.nonsense(parsed.error()));
        handle(rank, *parsed, message);
    }
}

void ServiceThread::handle(unsigned rank, const Message& message, driver::LocalMessage& received) {
    RankResources& own = *own_;
    switch (message.word) {
        case Word::share: {
            if (message.slot == 0 || message.slot >= protocol::max_slots ||
                own.imports->has(rank, message.slot))
                return fail(lies(rank, "shares a slot that is not free"));
            const auto added = take_share(rank, message, received);
            return queue(rank, Message{.word = Word::shared,
                                       .slot = message.slot,
                                       .text = added ? "" : added.error().to_string()});
        }
        case Word::shared:
            return own.reachability->shared(rank, message.slot, message.text);
        case Word::drop:
            if (message.slot == 0 || message.slot >= protocol::max_slots)
                return fail(lies(rank, "drops a slot that it did not share"));
            own.imports->drop(rank, message.slot);
            return queue(rank, Message{.word = Word::dropped, .slot = message.slot});
        case Word::dropped:
            return own.reachability->dropped(rank, message.slot);
        case Word::refuse:
        case Word::failed:
            return end_here(Error{message.code == ErrorCode{0} ? ErrorCode::io_error : message.code,
                                  message.text,
                                  own.contacts[rank]->who(),
                                  {}});
        case Word::exchange:
        case Word::withdraw:
        case Word::withdrawn:
            return exchanges_.handle(rank, message);
        case Word::goodbye: {
            peers_[rank].left = true;
            peers_[rank].steps = message.number;
            own.reachability->gone(rank);
            const std::lock_guard lock(mutex_);
            absent_ |= 1u << rank;
            return exchanges_.wake();
        }
        case Word::forgotten:
            peers_[rank].forgotten = true;
            return;
        default:
            return fail(lies(rank, "said something unexpected"));
    }
}

Error ServiceThread::lies(unsigned rank, const std::string& what) const {
    return {ErrorCode::io_error, fmt::format("{} {}", own_->contacts[rank]->who(), what), own_->name, {}};
}

Result<void> ServiceThread::take_share(unsigned rank, const Message& message,
                                       const driver::LocalMessage& received) {
    if (received.lost_descriptor)
        return Error{ErrorCode::out_of_memory, "it may open no more files, which the memory comes as",
                     own_->name, "raise `ulimit -n`"};
    const int descriptor = received.descriptor ? received.descriptor.get() : -1;
    return own_->imports->add(rank, message.slot, message.blob, descriptor,
                              own_->contacts[rank]->same_process);
}

// The connection ended.
void ServiceThread::on_disconnect(unsigned rank) {
    Peer& peer = peers_[rank];
    if (peer.closed) return;
    peer.closed = true;
    peer.forgotten = true;
    // It has ended without a word, but in order.
    const BoardFile::Row& row = own_->board->file().rows[rank];
    if (!peer.left && row.state.load() == BoardFile::left) {
        peer.left = true;
        peer.steps = row.steps.load();
        peer.ended_ns = steady_ns();
    }
    own_->reachability->gone(rank);
    {
        const std::lock_guard lock(mutex_);
        absent_ |= 1u << rank;
        outbox_[rank].clear();
        exchanges_.wake();
        if (leaving_) return;
    }
    if (peer.left) return;
    (void)idle();  // notes what has ended
    own_->board->died(rank);
    fail(explain_death({rank, own_->contacts[rank]->who(), own_->rank, own_->name}, own_->board->file()));
}

void ServiceThread::settle_fault() {
    if (own_->verdict.failed() || ending::begun()) return;
    if (const auto record = own_->seat->fault(); record && record->kind != protocol::FaultKind::none)
        fail_for(*record);
}

void ServiceThread::fail_for(const protocol::FaultRecord& record) {
    const unsigned peer = record.peer < own_->ranks ? record.peer : own_->rank;
    fail(explain_fault({record, own_->rank, own_->name, own_->name_of_rank(peer),
                        static_cast<double>(own_->timeout.count()) / 1000},
                       own_->board->file()));
}

// What another rank has ended the group for. Its message may wait behind others, or it died before it said so.
void ServiceThread::take_end_from_board() {
    if (own_->verdict.failed()) return;
    const BoardFile& board = own_->board->file();
    const std::uint64_t aborted = board.aborted.load(std::memory_order_acquire);
    if (const std::uint64_t rank = (aborted & 0xff) - 1; (aborted & 0xff) != 0 && rank < own_->ranks) {
        const auto code = static_cast<ErrorCode>(aborted >> 8 & 0xff);
        const bool known = code >= ErrorCode::invalid_argument && code <= ErrorCode::internal;
        end_here(Error{known ? code : ErrorCode::io_error,
                       board.rows[rank].error.load(),
                       own_->name_of_rank(static_cast<unsigned>(rank)),
                       {}});
    }
}

void ServiceThread::look_at_board() {
    take_end_from_board();
    if (own_->verdict.failed()) return;
    const BoardFile& board = own_->board->file();
    for (unsigned rank = 0; rank < own_->ranks; ++rank) {
        if (!peers_[rank].left) continue;
        (void)idle();  // notes what has ended
        const DepartureSeen seen{rank,       own_->contacts[rank]->who(), peers_[rank].steps, own_->rank,
                                 own_->name, peers_[rank].ended_ns,       steady_ns()};
        if (const auto lost = explain_departure(seen, board)) return fail(*lost);
    }
}

// Nothing but the end of a rank ends a wait without a deadline, so people have to hear of it.
void ServiceThread::tell_of_stall() {
    const BoardFile& board = own_->board->file();
    switch (stall_.look(waiting_s(board, own_->rank))) {
        case StallWatch::Say::nothing:
            return;
        case StallWatch::Say::waits:
            if (const auto other = find_difference(own_->rank, board)) return fail_for(*other);
            return base::log(base::LogLevel::warn,
                             fmt::format("group {}: {}", board.name.load(), waits_of(board, own_->rank)));
        case StallWatch::Say::goes_on:
            return base::log(base::LogLevel::warn,
                             fmt::format("group {}: {} goes on after {:.0f} s", board.name.load(), own_->name,
                                         stall_.take_waited_s()));
    }
}

void ServiceThread::end_here(const Error& error) {
    if (!own_->verdict.fail(error) || ending::begun()) return;
    own_->seat->abort();
    own_->board->file().rows[own_->rank].error.store(error.message);
    exchanges_.wake();
}

void ServiceThread::fail(const Error& error) {
    if (!own_->verdict.fail(error) || ending::begun()) return;
    own_->seat->abort();
    BoardFile& board = own_->board->file();
    board.rows[own_->rank].error.store(error.message);
    std::uint64_t nobody = 0;
    board.aborted.compare_exchange_strong(nobody, packed(own_->rank, error.code));
    for (unsigned rank = 0; rank < own_->ranks; ++rank)
        if (rank != own_->rank)
            queue(rank, Message{.word = Word::failed, .code = error.code, .text = error.message});
    exchanges_.wake();
    wake();
}

Result<void> ServiceThread::status() {
    settle_fault();
    take_end_from_board();
    return own_->verdict.status();
}

Result<bool> ServiceThread::idle() {
    if (ending::begun()) return Error{ErrorCode::cancelled, "the process ends", own_->name, {}};
    return note_ended();
}

Result<bool> ServiceThread::at_rest() {
    SIDESTEP_TRY(const bool ended, idle());
    return ended ? own_->seat->at_rest() : Result<bool>(false);
}

Result<bool> ServiceThread::note_ended() {
    const BoardFile::Row& row = own_->board->file().rows[own_->rank];
    const std::uint64_t enqueued = row.enqueued.load(std::memory_order_acquire);
    SIDESTEP_TRY(const bool ended, own_->seat->idle());
    const std::uint64_t known = ended ? enqueued : own_->seat->ended().value_or(0);
    own_->board->ended(own_->rank, std::min(known, enqueued));
    return ended;
}

bool ServiceThread::in_use() {
    const auto ended = idle();
    if (ended && !*ended) return true;
    const BoardFile& board = own_->board->file();
    for (unsigned rank = 0; rank < own_->ranks; ++rank) {
        if (!own_->contacts[rank] || !own_->contacts[rank]->same_process || absent(rank)) continue;
        const std::uint64_t enqueued = board.rows[rank].enqueued.load(std::memory_order_acquire);
        // It writes down what it is about to enqueue.
        if (board.rows[rank].done.load(std::memory_order_acquire) < enqueued ||
            board.find(rank, enqueued + 1))
            return true;
    }
    return false;
}

void ServiceThread::queue(unsigned rank, Message message, int descriptor, std::shared_ptr<const void> keeps) {
    const std::lock_guard lock(mutex_);
    if ((absent_ >> rank & 1) != 0 && message.word != Word::goodbye && message.word != Word::forgotten &&
        message.word != Word::dropped && message.word != Word::shared)
        return;
    if (outbox_[rank].size() < max_outgoing)
        outbox_[rank].push_back({to_bytes(message), descriptor, std::move(keeps)});
}

void ServiceThread::flush() {
    const std::lock_guard lock(mutex_);
    for (unsigned rank = 0; rank < own_->ranks; ++rank) {
        auto& waiting = outbox_[rank];
        if (!own_->contacts[rank] || peers_[rank].closed) {
            waiting.clear();
            continue;
        }
        // One that is not taken now is tried again; who takes none any more is noticed by its connection.
        while (!waiting.empty() &&
               own_->contacts[rank]->socket.send(waiting.front().bytes, waiting.front().descriptor))
            waiting.pop_front();
    }
}

void ServiceThread::leave(driver::LocalSocket::Time until) {
    const std::uint64_t steps = own_->board->file().rows[own_->rank].steps.load();
    for (unsigned rank = 0; rank < own_->ranks; ++rank)
        if (rank != own_->rank) queue(rank, Message{.word = Word::goodbye, .number = steps});
    own_->board->leave();  // first: from then on the thread may end, and the board with it
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
        leave_until_ = until;
    }
    wake();
}

void ServiceThread::hurry(driver::LocalSocket::Time until) {
    {
        const std::lock_guard lock(mutex_);
        leave_until_ = std::min(leave_until_, until);
    }
    wake();
}

void ServiceThread::leave_other_processes_behind(driver::LocalSocket::Time until) {
    {
        const std::lock_guard lock(mutex_);
        others_until_ = std::min(others_until_, until);
    }
    wake();
}

// Unmaps the memory of ranks that have left or died. Whoever enqueued a task before it was hidden may use it.
void ServiceThread::release_departed() {
    const auto uses_it = [this] {
        const auto ended = at_rest();
        return ended && !*ended;
    };
    for (unsigned rank = 0; rank < own_->ranks; ++rank) {
        Peer& peer = peers_[rank];
        if (peer.let_go || !(peer.left || peer.closed)) continue;
        if (uses_it()) return;
        own_->imports->hide(rank, own_->seat->arena());
        if (uses_it()) return;
        own_->imports->forget(rank);
        peer.let_go = true;
        queue(rank, Message{.word = Word::forgotten});
    }
}

bool ServiceThread::all_let_go() const {
    auto& self = const_cast<ServiceThread&>(*this);
    const std::lock_guard lock(self.mutex_);
    if (!leaving_) return false;
    const auto now = Clock::now();
    if (now >= leave_until_) return true;
    for (unsigned rank = 0; rank < own_->ranks; ++rank) {
        if (!own_->contacts[rank] || peers_[rank].closed) continue;
        if (now >= others_until_ && !own_->contacts[rank]->same_process) continue;
        // Those that leave too are told first that their memory is free.
        if (!peers_[rank].forgotten || (peers_[rank].left && !peers_[rank].let_go) || !outbox_[rank].empty())
            return false;
    }
    return true;
}

// The memory is freed here, on the thread that knows that it has no users.
void ServiceThread::end() {
    bool used = false;
    for (unsigned rank = 0; rank < own_->ranks; ++rank) {
        const bool holds = own_->contacts[rank] && !peers_[rank].forgotten;
        used = used || (holds && own_->contacts[rank]->same_process);
        if (holds)
            base::log(base::LogLevel::warn,
                      fmt::format("{} has left a group, but {} still has its memory mapped", own_->name,
                                  own_->contacts[rank]->who()));
    }
    for (auto& contact : own_->contacts) contact.reset();
    // Ranks of this very process use the address itself: rather lost than freed under them.
    if (used) {
        own_->seat->halt();
        ending::keep(own_->seat.release());
    } else {
        own_->seat.reset();
    }
    own_->reachability.reset();  // whom the seat asks
    if (!used)
        own_->imports.reset();
    else
        ending::keep(own_->imports.release());
    own_->board.reset();
    finished_.store(true, std::memory_order_release);
}

}  // namespace sidestep::collective
