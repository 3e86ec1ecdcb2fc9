#include "collective/attendant.hpp"

#include <poll.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/try.hpp"
#include "collective/ending.hpp"

namespace sidestep::collective {
namespace {

using Clock = std::chrono::steady_clock;

// Faults and the board are looked at this often.
constexpr int pause_ms = 10;
constexpr std::chrono::milliseconds look_pause{500};
// Of what waits to be sent, for each rank.
constexpr std::size_t max_outgoing = 8192;
constexpr unsigned messages_at_once = 64;

std::uint64_t packed(unsigned rank, ErrorCode code) {
    return (std::uint64_t{rank} + 1) | static_cast<std::uint64_t>(code) << 8;
}

}  // namespace

Attendant::Attendant(std::unique_ptr<Party> party)
    : party_(std::move(party)), peers_(party_->ranks), outbox_(party_->ranks), exchanges_(surroundings()) {
    for (unsigned rank = 0; rank < party_->ranks; ++rank) {
        if (!party_->contacts[rank] || party_->contacts[rank]->same_process) continue;
        if (auto watched = driver::watch_process(party_->contacts[rank]->process))
            peers_[rank].process = std::move(*watched);
    }
}

Exchanges::Surroundings Attendant::surroundings() {
    return {party_->rank,
            party_->ranks,
            [this](unsigned rank, Message message) {
                queue(rank, std::move(message));
                wake();
            },
            [this](unsigned rank) { return absent(rank); },
            [this](unsigned rank) { return party_->name_of_rank(rank); },
            [this] { return party_->verdict.status(); }};
}

void Attendant::join() {
    const std::lock_guard lock(joining_);
    if (thread_.joinable()) thread_.join();
}

Attendant::~Attendant() {
    join();
    ending::remove(*this);
    if (ending::begun()) ending::keep(party_.release());
}

Result<void> Attendant::start() {
    SIDESTEP_TRY(driver::Waker waker, driver::Waker::create());
    waker_ = std::make_unique<driver::Waker>(std::move(waker));
    if (party_->seat->ended()) party_->board->file().rows[party_->rank].counts.store(1);
    ending::add(*this);
    auto started = base::start_thread([this] { serve(); }, "group");
    if (started)
        thread_ = std::move(*started);
    else
        finished_.store(true);
    return started ? Result<void>() : started.error();
}

void Attendant::serve() {
    auto looked = Clock::now();
    while (!parted()) {
        wait_for_news();
        if (ending::begun()) {
            party_->seat->halt();
            return finished_.store(true, std::memory_order_release);
        }
        settle_fault();
        look_at_board();
        const auto asked = idle();
        const bool ended = !asked || *asked;
        const bool working = !party_->verdict.failed();
        if (working && Clock::now() - looked > look_pause) {
            party_->reachability->look();
            looked = Clock::now();
        }
        if (working)
            party_->reachability->work(ended,
                                       [this](unsigned rank, Message message, int descriptor, auto keeps) {
                                           queue(rank, std::move(message), descriptor, std::move(keeps));
                                       });
        part(ended);
        flush();
    }
    end();
}

void Attendant::wait_for_news() {
    std::vector<pollfd> entries{{waker_->number(), POLLIN, 0}};
    bool full = false;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& queue : outbox_) full = full || !queue.empty();
    }
    for (unsigned rank = 0; rank < party_->ranks; ++rank) {
        const bool open = party_->contacts[rank] && !peers_[rank].closed;
        entries.push_back({open ? party_->contacts[rank]->socket.number() : -1, POLLIN, 0});
        entries.push_back({open && peers_[rank].process ? peers_[rank].process.get() : -1, POLLIN, 0});
    }
    ::poll(entries.data(), entries.size(), full ? 1 : pause_ms);
    if (entries[0].revents != 0) waker_->clear();
    for (unsigned rank = 0; rank < party_->ranks; ++rank) {
        if (!party_->contacts[rank]) continue;
        if (entries[1 + 2 * rank].revents != 0 || !party_->contacts[rank]->early.empty()) hear(rank);
        // What it still said has been read by now.
        if (entries[2 + 2 * rank].revents != 0 && !peers_[rank].closed) {
            hear(rank);
            lost(rank);
        }
    }
}

void Attendant::hear(unsigned rank) {
    Contact& contact = *party_->contacts[rank];
    for (unsigned count = 0; count < messages_at_once && !peers_[rank].closed; ++count) {
        driver::LocalMessage message;
        if (!contact.early.empty()) {
            message = std::move(contact.early.front());
            contact.early.pop_front();
        } else {
            auto received = contact.socket.receive(longest_message, Clock::now());
            if (!received && received.error().code == ErrorCode::timed_out) return;
            if (!received) return lost(rank);
            message = std::move(*received);
        }
        const auto parsed = parse_message(message.bytes);
        if (!parsed) return fail(parsed.error());
        take(rank, *parsed, message);
    }
}

void Attendant::take(unsigned rank, const Message& message, driver::LocalMessage& received) {
    Party& party = *party_;
    switch (message.word) {
        case Word::share: {
            const Contact& contact = *party.contacts[rank];
            const int descriptor = received.descriptor ? received.descriptor.get() : -1;
            const auto added =
                message.slot == 0
                    ? Result<void>(Error{ErrorCode::io_error, "a wrong slot", "group", {}})
                    : party.imports->add(rank, message.slot, message.blob, descriptor, contact.same_process);
            return queue(rank, Message{.word = Word::shared,
                                       .slot = message.slot,
                                       .text = added ? "" : added.error().to_string()});
        }
        case Word::shared:
            return party.reachability->shared(rank, message.slot, message.text);
        case Word::drop:
            party.imports->drop(rank, message.slot);
            return queue(rank, Message{.word = Word::dropped, .slot = message.slot});
        case Word::dropped:
            return party.reachability->dropped(rank, message.slot);
        case Word::refuse:
        case Word::failed:
            return end_here(Error{message.code == ErrorCode{0} ? ErrorCode::io_error : message.code,
                                  message.text,
                                  party.contacts[rank]->who(),
                                  {}});
        case Word::exchange:
        case Word::withdraw:
        case Word::withdrawn:
            return exchanges_.handle(rank, message);
        case Word::goodbye: {
            peers_[rank].left = true;
            peers_[rank].steps = message.number;
            party.reachability->gone(rank);
            const std::lock_guard lock(mutex_);
            absent_ |= 1u << rank;
            return exchanges_.wake();
        }
        case Word::forgotten:
            peers_[rank].forgotten = true;
            return;
        default:
            return fail(Error{ErrorCode::io_error,
                              fmt::format("{} said something unexpected", party.contacts[rank]->who()),
                              party.name,
                              {}});
    }
}

// The connection ended.
void Attendant::lost(unsigned rank) {
    Peer& peer = peers_[rank];
    if (peer.closed) return;
    peer.closed = true;
    peer.forgotten = true;
    // It has ended without a word, but in order.
    const BoardFile::Row& row = party_->board->file().rows[rank];
    if (!peer.left && row.state.load() == BoardFile::left) {
        peer.left = true;
        peer.steps = row.steps.load();
    }
    party_->reachability->gone(rank);
    {
        const std::lock_guard lock(mutex_);
        absent_ |= 1u << rank;
        outbox_[rank].clear();
        exchanges_.wake();
        if (leaving_) return;
    }
    if (peer.left) return;
    (void)idle();  // notes what has ended
    fail(explain_death({rank, party_->contacts[rank]->who(), party_->rank, party_->name},
                       party_->board->file()));
}

void Attendant::settle_fault() {
    if (party_->verdict.failed() || ending::begun()) return;
    const auto record = party_->seat->fault();
    if (!record || record->kind == backend::FaultKind::none) return;
    const unsigned peer = record->peer < party_->ranks ? record->peer : party_->rank;
    fail(explain_fault({*record, party_->rank, party_->name, party_->name_of_rank(peer),
                        static_cast<double>(party_->timeout.count()) / 1000},
                       party_->board->file()));
}

// What an attendant could not say: it died first, or its message waits behind others.
void Attendant::look_at_board() {
    if (party_->verdict.failed()) return;
    const BoardFile& board = party_->board->file();
    const std::uint64_t aborted = board.aborted.load(std::memory_order_acquire);
    if (const std::uint64_t rank = (aborted & 0xff) - 1; (aborted & 0xff) != 0 && rank < party_->ranks) {
        const auto code = static_cast<ErrorCode>(aborted >> 8 & 0xff);
        end_here(Error{
            code, board.rows[rank].error.load(), party_->name_of_rank(static_cast<unsigned>(rank)), {}});
        return;
    }
    // A rank that left without an operation of all that this one has begun will never come to it.
    const BoardFile::Row& own = board.rows[party_->rank];
    const std::uint64_t steps = own.steps.load(std::memory_order_acquire);
    for (unsigned rank = 0; rank < party_->ranks; ++rank) {
        if (!peers_[rank].left || steps <= peers_[rank].steps) continue;
        const auto noted = board.find_step(party_->rank, peers_[rank].steps + 1);
        fail(Error{ErrorCode::io_error,
                   fmt::format("{} left the group before operation {}{}{}", party_->contacts[rank]->who(),
                               peers_[rank].steps + 1, noted ? ", " : "", noted ? noted->text() : ""),
                   party_->name,
                   {}});
        return;
    }
}

void Attendant::end_here(const Error& error) {
    if (!party_->verdict.fail(error) || ending::begun()) return;
    party_->seat->abort();
    party_->board->file().rows[party_->rank].error.store(error.message);
    exchanges_.wake();
}

void Attendant::fail(const Error& error) {
    if (!party_->verdict.fail(error) || ending::begun()) return;
    party_->seat->abort();
    BoardFile& board = party_->board->file();
    board.rows[party_->rank].error.store(error.message);
    std::uint64_t nobody = 0;
    board.aborted.compare_exchange_strong(nobody, packed(party_->rank, error.code));
    for (unsigned rank = 0; rank < party_->ranks; ++rank)
        if (rank != party_->rank)
            queue(rank, Message{.word = Word::failed, .code = error.code, .text = error.message});
    exchanges_.wake();
    wake();
}

Result<void> Attendant::status() {
    settle_fault();
    return party_->verdict.status();
}

Result<bool> Attendant::idle() {
    if (ending::begun()) return Error{ErrorCode::cancelled, "the process ends", party_->name, {}};
    const BoardFile::Row& row = party_->board->file().rows[party_->rank];
    const std::uint64_t enqueued = row.enqueued.load(std::memory_order_acquire);
    SIDESTEP_TRY(const bool ended, party_->seat->idle());
    const std::uint64_t known = ended ? enqueued : party_->seat->ended().value_or(0);
    party_->board->ended(party_->rank, std::min(known, enqueued));
    return ended;
}

bool Attendant::in_use() {
    const auto ended = idle();
    if (ended && !*ended) return true;
    const BoardFile& board = party_->board->file();
    for (unsigned rank = 0; rank < party_->ranks; ++rank) {
        if (!party_->contacts[rank] || !party_->contacts[rank]->same_process || absent(rank)) continue;
        const std::uint64_t enqueued = board.rows[rank].enqueued.load(std::memory_order_acquire);
        // It writes down what it is about to enqueue.
        if (board.rows[rank].done.load(std::memory_order_acquire) < enqueued ||
            board.find(rank, enqueued + 1))
            return true;
    }
    return false;
}

void Attendant::queue(unsigned rank, Message message, int descriptor, std::shared_ptr<const void> keeps) {
    const std::lock_guard lock(mutex_);
    if ((absent_ >> rank & 1) != 0 && message.word != Word::goodbye && message.word != Word::forgotten &&
        message.word != Word::dropped && message.word != Word::shared)
        return;
    if (outbox_[rank].size() < max_outgoing)
        outbox_[rank].push_back({to_bytes(message), descriptor, std::move(keeps)});
}

void Attendant::flush() {
    const std::lock_guard lock(mutex_);
    for (unsigned rank = 0; rank < party_->ranks; ++rank) {
        auto& waiting = outbox_[rank];
        if (!party_->contacts[rank] || peers_[rank].closed) {
            waiting.clear();
            continue;
        }
        // One that is not taken now is tried again; who takes none any more is noticed by its connection.
        while (!waiting.empty() &&
               party_->contacts[rank]->socket.send(waiting.front().bytes, waiting.front().descriptor))
            waiting.pop_front();
    }
}

void Attendant::leave(driver::LocalSocket::Time until) {
    const std::uint64_t steps = party_->board->file().rows[party_->rank].steps.load();
    for (unsigned rank = 0; rank < party_->ranks; ++rank)
        if (rank != party_->rank) queue(rank, Message{.word = Word::goodbye, .number = steps});
    party_->board->leave();  // first: from then on the thread may end, and the board with it
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
        leave_until_ = until;
    }
    wake();
}

void Attendant::hurry(driver::LocalSocket::Time until) {
    {
        const std::lock_guard lock(mutex_);
        leave_until_ = std::min(leave_until_, until);
    }
    wake();
}

void Attendant::leave_other_processes_behind(driver::LocalSocket::Time until) {
    {
        const std::lock_guard lock(mutex_);
        others_until_ = std::min(others_until_, until);
    }
    wake();
}

// Lets go of the memory of those who have left, or died.
void Attendant::part(bool idle) {
    if (!idle) return;
    for (unsigned rank = 0; rank < party_->ranks; ++rank) {
        Peer& peer = peers_[rank];
        if (peer.let_go || !(peer.left || peer.closed)) continue;
        party_->imports->forget(rank, party_->seat->arena().address());
        peer.let_go = true;
        queue(rank, Message{.word = Word::forgotten});
    }
}

bool Attendant::parted() const {
    auto& self = const_cast<Attendant&>(*this);
    const std::lock_guard lock(self.mutex_);
    if (!leaving_) return false;
    const auto now = Clock::now();
    if (now >= leave_until_) return true;
    for (unsigned rank = 0; rank < party_->ranks; ++rank) {
        if (!party_->contacts[rank] || peers_[rank].closed) continue;
        if (now >= others_until_ && !party_->contacts[rank]->same_process) continue;
        // Those that leave too are told first that their memory is free.
        if (!peers_[rank].forgotten || (peers_[rank].left && !peers_[rank].let_go) || !outbox_[rank].empty())
            return false;
    }
    return true;
}

// The memory goes here, on the thread that knows that nobody uses it.
void Attendant::end() {
    bool used = false;
    for (unsigned rank = 0; rank < party_->ranks; ++rank) {
        const bool holds = party_->contacts[rank] && !peers_[rank].forgotten;
        used = used || (holds && party_->contacts[rank]->same_process);
        if (holds)
            base::log(base::LogLevel::warn,
                      fmt::format("{} has left a group, but {} still has its memory mapped", party_->name,
                                  party_->contacts[rank]->who()));
    }
    for (auto& contact : party_->contacts) contact.reset();
    // Ranks of this very process use the address itself: rather lost than freed under them.
    if (used) {
        party_->seat->halt();
        ending::keep(party_->seat.release());
    } else {
        party_->seat.reset();
    }
    party_->reachability.reset();  // whom the seat asks
    if (!used)
        party_->imports.reset();
    else
        ending::keep(party_->imports.release());
    party_->board.reset();
    finished_.store(true, std::memory_order_release);
}

}  // namespace sidestep::collective
