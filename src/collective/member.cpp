#include "collective/member.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include <fmt/format.h>

#include "base/try.hpp"
#include "collective/coalesce.hpp"
#include "collective/ending.hpp"

namespace sidestep::collective {
namespace {

using Clock = std::chrono::steady_clock;

// Tasks of a group that has failed give up within this.
constexpr std::chrono::seconds give_up_limit{1};
// Tasks that were aborted end within this.
constexpr std::chrono::seconds abort_limit{5};
// How long detach() waits until the other ranks have unmapped the memory.
constexpr std::chrono::milliseconds detach_limit{200};
constexpr std::chrono::microseconds wait_pause{50};
constexpr int quick_looks = 200;

// Whether the tasks of one call are those of the other, but for tokens and numbers.
bool same_call(const Operation& a, const Operation& b) {
    const auto key = [](const Operation& o) {
        return std::tuple(o.collective, o.send, o.recv, o.count, o.element, o.combine, o.scale,
                          o.device_scale, o.root);
    };
    return key(a) == key(b);
}

// The driver read the variable when it was loaded, and does not say what it was; this is its value now.
std::string note_on_queues() {
    constexpr int max = 32;
    const char* const set = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (set != nullptr && std::atoi(set) >= max) return {};
    return fmt::format(
        "; CUDA_DEVICE_MAX_CONNECTIONS is {}: where streams that wait hold up every queue of a GPU, copies "
        "cannot begin "
        "before the deadline. Set to {} before the program starts, it gives more of them",
        set != nullptr && *set != '\0' ? set : "not set", max);
}

bool has_lists(const Operation& operation) {
    return operation.collective == Collective::all_to_all_v ||
           operation.collective == Collective::send_recv || !operation.coalesced.empty();
}

// What carries lists of blocks depends on no size in them, and choosing takes longer than a kernel.
bool same_choice(const Operation& a, const Operation& b) {
    if (a.collective != b.collective || !a.coalesced.empty() || !b.coalesced.empty()) return false;
    if (has_lists(a)) return a.blocks.on_device == b.blocks.on_device;
    const auto key = [](const Operation& o) { return std::tuple(o.count, o.element, o.combine, o.root); };
    return key(a) == key(b);
}

// FNV-1a of 64 bits over words; made for GroupId, not to withstand anybody. Source: RFC draft-eastlake-fnv.
class Mix {
public:
    explicit Mix(std::uint64_t seed) : state_(14695981039346656037ull ^ seed) {}
    Mix& add(std::uint64_t word) {
        for (int i = 0; i < 8; ++i) state_ = (state_ ^ (word >> (8 * i) & 0xff)) * 1099511628211ull;
        return *this;
    }
    std::uint64_t value() const { return state_; }

private:
    std::uint64_t state_;
};

}  // namespace

driver::LocalSocket::Time deadline_after(std::chrono::milliseconds timeout) {
    constexpr std::chrono::hours never{24 * 365};
    return Clock::now() + (timeout.count() <= 0 ? std::chrono::milliseconds(never) : timeout);
}

Result<Member::Decided*> Member::choose_for(const Operation& operation) {
    const std::uint64_t hash =
        Mix(static_cast<std::uint64_t>(operation.collective)).add(operation.count).value() ^
        static_cast<std::uint64_t>(operation.element) ^ static_cast<std::uint64_t>(operation.combine) << 4;
    Decided& decided = has_lists(operation) ? listed_ : decided_[hash % decided_.size()];
    if (decided.valid && same_choice(decided.operation, operation)) return &decided;
    decided.valid = decided.has_tasks = false;
    if (operation.coalesced.empty()) {
        SIDESTEP_TRY(decided.choice, choose(operation, facts_, options_.policy));
    } else {
        decided.choice = choose_coalesced(operation, facts_);
    }
    decided.operation = operation;
    decided.valid = true;
    return &decided;
}

Result<Member::Decided*> Member::decide(const Operation& operation) {
    SIDESTEP_TRY(Decided * decided, choose_for(operation));
    if (decided->has_tasks && !has_lists(operation) && same_call(decided->operation, operation))
        return decided;
    decided->signature = signature_of(operation);
    decided->operation = operation;
    decided->tasks = tasks_of(operation, decided->choice, rank(), ranks());
    for (protocol::CollectiveTask& task : decided->tasks) task.signature = decided->signature;
    decided->has_tasks = true;
    return decided;
}

Result<protocol::Token> Member::token_of(const void* address, Bytes bytes, bool& asked) {
    // No rank reads there, so it gives no reason to go through the arena; and it may be any address, at ranks that are no root.
    if (address == nullptr || bytes == 0) return protocol::Token{0, 0};
    return own().reachability->token(address, bytes, asked);
}

Result<void> Member::set_tokens(protocol::CollectiveTask& task, bool& asked) {
    const bool slices = task.shape == protocol::Shape::slices || task.shape == protocol::Shape::pushed_slices;
    const bool copies = task.shape == protocol::Shape::copies;
    if (!slices && !copies && task.shape != protocol::Shape::pairs) return {};
    const Touched touched =
        touched_by_others(task, static_cast<unsigned>(rank()), static_cast<unsigned>(ranks()));
    if (task.shape == protocol::Shape::slices && task.recv == task.send) {
        SIDESTEP_TRY(task.recv_token, token_of(task.recv, std::max(touched.send, touched.recv), asked));
        task.send_token = task.recv_token;
        return {};
    }
    if (slices) {
        if (task.shape == protocol::Shape::slices) {
            SIDESTEP_TRY(task.send_token, token_of(task.send, touched.send, asked));
        }
        SIDESTEP_TRY(task.recv_token, token_of(task.recv, touched.recv, asked));
        return {};
    }
    // In place a gather's root has one buffer for both, and sends nothing.
    // A broadcast by copies hands on from where it comes to.
    const bool through_arena =
        (copies || task.send == task.recv) &&
        protocol::send_overlaps_recv(task, static_cast<unsigned>(rank()), static_cast<unsigned>(ranks()));
    if (task.device_recv_offsets != nullptr) {
        SIDESTEP_TRY(task.recv_token, token_of(task.recv, touched.recv, asked));
        return {};
    }
    for (int rank = 0; rank < ranks(); ++rank) {
        if (task.from[rank].bytes == 0 || rank == this->rank()) continue;
        task.from_tokens[rank] = {};
        // In place the blocks go through the arena, which keeps what is still to be sent.
        if (through_arena) continue;
        SIDESTEP_TRY(task.from_tokens[rank], token_of(static_cast<char*>(task.recv) + task.from[rank].offset,
                                                      task.from[rank].bytes, asked));
    }
    return {};
}

Result<void> Member::check_peers(const Operation& operation) const {
    for (const PairItem& item : operation.pairs)
        if (item.bytes > 0 && item.peer != rank() && service_->absent(static_cast<unsigned>(item.peer)))
            return Error{
                ErrorCode::io_error,
                fmt::format("{} has left the group", own().name_of_rank(static_cast<unsigned>(item.peer))),
                own().name,
                {}};
    return {};
}

Result<void> Member::check_state() const {
    SIDESTEP_CHECK(process_.check("this group"));
    SIDESTEP_CHECK(service_->status());
    if (ending::begun()) return Error{ErrorCode::cancelled, "the process ends", own().name, {}};
    return {};
}

Result<void> Member::run(const Operation& operation, void* stream) {
    SIDESTEP_CHECK(check_state());
    SIDESTEP_CHECK(check(operation, rank(), ranks()));
    SIDESTEP_CHECK(check_peers(operation));
    return carry_out(operation, stream);
}

Result<void> Member::run_together(std::vector<Operation> calls, void* stream) {
    SIDESTEP_CHECK(check_state());
    for (const Operation& call : calls) {
        SIDESTEP_CHECK(check(call, rank(), ranks()));
        SIDESTEP_CHECK(check_peers(call));
    }
    const auto alone_us = [this](const Operation& call) {
        const auto chosen = choose_for(call);
        return chosen ? (*chosen)->choice.expected_us : 0;
    };
    if (options_.policy == GroupPolicy::automatic) calls = coalesce(std::move(calls), facts_, alone_us);
    for (const Operation& call : calls)
        if (!call.coalesced.empty()) SIDESTEP_CHECK(check(call, rank(), ranks()));
    for (std::size_t i = 0; i < calls.size(); ++i) {
        auto done = carry_out(calls[i], stream);
        if (done) continue;
        // The others wait for the rest.
        if (i > 0) service_->fail(done.error());
        return done;
    }
    return {};
}

Result<void> Member::carry_out(const Operation& operation, void* stream) {
    SIDESTEP_TRY(Decided * decided, decide(operation));
    bool asked = false;
    for (protocol::CollectiveTask& task : decided->tasks) SIDESTEP_CHECK(set_tokens(task, asked));

    Noted noted = note_of(operation);
    noted.number = number_ + 1;
    noted.step = operation.collective == Collective::send_recv ? step_ : step_ + 1;
    noted.time_ns = steady_ns();
    noted.signature = decided->signature;
    SIDESTEP_CHECK(enqueue(decided->tasks, noted, stream));
    own().board->count(static_cast<unsigned>(rank()), operation.pairs);
    if (asked) service_->wake();
    return {};
}

// What is refused as a whole never was, here or on the board, so that this rank stays in step with the others.
Result<void> Member::enqueue(std::vector<protocol::CollectiveTask>& tasks, const Noted& noted, void* stream) {
    Board& board = *own().board;
    const auto me = static_cast<unsigned>(rank());
    board.note(me, noted);
    Result<void> state;
    for (protocol::CollectiveTask& task : tasks) {
        task.number = noted.number;
        state = own().seat->run(task, stream);
        if (state) continue;
        const auto fault = own().seat->fault();
        const bool partly = fault && fault->kind == protocol::FaultKind::aborted;
        if (&task == tasks.data() && !partly) {
            board.refused(me, noted);
            return state;
        }
        // The others wait for what will never come.
        service_->fail(state.error());
        break;
    }
    number_ = noted.number;
    step_ = noted.step;
    board.enqueued(me, noted);
    return state;
}

Result<void> Member::attach(const Buffer& buffer) {
    SIDESTEP_CHECK(process_.check("this group"));
    SIDESTEP_CHECK(service_->status());
    return own().reachability->attach(
        buffer, join_deadline(), [this] { service_->wake(); }, [this] { return service_->status(); });
}

Result<void> Member::detach(const Buffer& buffer) {
    return own().reachability->detach(
        buffer, Clock::now() + detach_limit, [this] { service_->wake(); },
        [this] { return service_->status(); });
}

Touched Member::touched_of(const Operation& operation, const Choice& choice) const {
    Touched touched;
    // Explained without its lists, which may lie in GPU memory.
    if (operation.collective == Collective::all_to_all_v) return {0, Touched::unknown};
    for (const auto& task : tasks_of(operation, choice, rank(), ranks())) {
        const Touched part =
            touched_by_others(task, static_cast<unsigned>(rank()), static_cast<unsigned>(ranks()));
        touched.send = std::max(touched.send, part.send);
        touched.recv = std::max(touched.recv, part.recv);
    }
    return touched;
}

Result<CollectivePlan> Member::explain(const Operation& operation) const {
    SIDESTEP_TRY(const Choice choice, choose(operation, facts_, options_.policy));
    std::string memory = choice.shape == protocol::Shape::lines ? "not needed: the data travels in lines"
                                                                : "not needed: the data travels in packets";
    if (choice.shape == protocol::Shape::lamport) memory = "not needed: the data travels through the arenas";
    if (choice.shape == protocol::Shape::ring)
        memory = "not needed: pieces pass through the arenas of neighbours";
    const bool copies = choice.shape == protocol::Shape::copies;
    const bool pairs = (choice.shape == protocol::Shape::pairs && !choice.eager) || copies;
    const bool fetches = choice.shape == protocol::Shape::slices;
    if (fetches || choice.shape == protocol::Shape::pushed_slices || pairs) {
        const bool in_place_pairs =
            pairs && operation.send == operation.recv && operation.collective == Collective::all_to_all;
        const Touched touched = touched_of(operation, choice);
        const auto described = [&](const void* buffer, Bytes bytes) {
            return own().reachability->describe(buffer, bytes);
        };
        const std::string send = fetches ? described(operation.send, touched.send) : "yes";
        std::string recv = described(operation.recv, touched.recv);
        // Its blocks write units of 16 bytes (collective_task.hpp, pushed_slices).
        const bool misaligned = reinterpret_cast<std::uintptr_t>(operation.recv) % 16 != 0;
        if (choice.shape == protocol::Shape::pushed_slices && misaligned && recv == "yes")
            recv = "no, carried through the arena: off a boundary of 16 bytes";
        if (in_place_pairs && operation.send != nullptr)
            memory = "no, carried through the arena: send and receive buffer are the same";
        else if (send == recv)
            memory = send;
        else
            memory = fmt::format("send buffer: {}; receive buffer: {}", send, recv);
    }
    CollectivePlan plan = plan_of(operation, choice, ranks(), std::move(memory));
    if (copies && !facts_.emulated) plan.reason += note_on_queues();
    if (facts_.wire == Wire::nvlink && own().seat->multicast())
        if (auto other = multicast_refused(operation, ranks())) plan.refused.push_back(std::move(*other));
    return plan;
}

Result<bool> Member::idle() const {
    SIDESTEP_CHECK(service_->status());
    return service_->idle();
}

Result<void> Member::wait() const {
    for (int looks = 0;; ++looks) {
        SIDESTEP_TRY(const bool ended, service_->idle());
        // In this order: what has ended may have ended by a fault.
        if (auto state = service_->status(); !state) {
            const auto until = Clock::now() + give_up_limit;
            while (service_->in_use() && Clock::now() < until) std::this_thread::sleep_for(wait_pause);
            return state;
        }
        if (ended) return {};
        if (looks < quick_looks)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(wait_pause);
    }
}

void Member::abort(const std::string& why) {
    service_->fail(Error{ErrorCode::cancelled,
                         fmt::format("{} aborted the group{}{}", own().name, why.empty() ? "" : ": ", why),
                         own().name,
                         {}});
}

void Member::leave() {
    auto until = deadline_after(options_.timeout);
    bool aborted = false;
    for (;;) {
        const auto ended = service_->at_rest();
        if (!ended || *ended) break;
        if (!aborted && !service_->status().ok()) {
            aborted = true;
            until = std::min(until, Clock::now() + abort_limit);
        }
        if (Clock::now() >= until) break;
        std::this_thread::sleep_for(wait_pause);
    }
    service_->leave(deadline_after(options_.timeout));
}

GroupId Member::derived_id(std::uint64_t number, std::uint64_t color) const {
    GroupId id;
    for (std::size_t half = 0; half < 2; ++half) {
        std::uint64_t parts[2];
        std::memcpy(parts, seating_.id.bytes.data(), sizeof(parts));
        const std::uint64_t value = Mix(half).add(parts[0]).add(parts[1]).add(number).add(color).value();
        std::memcpy(id.bytes.data() + 8 * half, &value, sizeof(value));
    }
    return id;
}

Result<std::optional<Seating>> Member::split(int color, int key, driver::LocalSocket::Time until,
                                             const std::stop_token& stop) {
    SIDESTEP_CHECK(service_->status());
    std::string blob(2 * sizeof(int), '\0');
    std::memcpy(blob.data(), &color, sizeof(int));
    std::memcpy(blob.data() + sizeof(int), &key, sizeof(int));
    SIDESTEP_TRY(const auto answers,
                 service_->exchanges().call(Exchanges::Kind::split, blob, (1u << ranks()) - 1, until, stop));
    std::vector<std::pair<int, int>> members;  // key, rank
    for (int other = 0; other < ranks(); ++other) {
        int theirs[2] = {-1, 0};
        const std::string& said = answers.blobs[static_cast<std::size_t>(other)];
        if (said.size() != blob.size())
            return Error{ErrorCode::io_error, "another rank's split makes no sense", own().name, {}};
        std::memcpy(theirs, said.data(), sizeof(theirs));
        if (color >= 0 && theirs[0] == color) members.emplace_back(theirs[1], other);
    }
    if (color < 0) return std::optional<Seating>();
    next_ = 0;
    for (const auto& [its_key, other] : members) next_ |= 1u << other;
    std::sort(members.begin(), members.end());
    Seating seating = seating_;
    seating.id = derived_id(answers.number, static_cast<std::uint64_t>(color));
    seating.ranks = static_cast<int>(members.size());
    const auto own = std::find(members.begin(), members.end(), std::pair(key, rank()));
    seating.rank = static_cast<int>(own - members.begin());
    return std::optional(seating);
}

// A rank leaves this group only after all have met in the new one. So one that has left before will not come.
Result<void> Member::next_are_coming() const {
    for (unsigned other = 0; other < static_cast<unsigned>(ranks()); ++other) {
        if ((next_ >> other & 1) == 0) continue;
        SIDESTEP_CHECK(service_->exchanges().keeps(other));
        if (service_->absent(other))
            return Error{ErrorCode::io_error,
                         fmt::format("{} has died or left", own().name_of_rank(other)),
                         own().name,
                         {}};
    }
    return {};
}

Result<Seating> Member::shrink(const std::vector<int>& excluded, driver::LocalSocket::Time until,
                               const std::stop_token& stop) {
    std::uint32_t members = (1u << ranks()) - 1;
    for (const int other : excluded) {
        if (other < 0 || other >= ranks() || other == rank())
            return Error{ErrorCode::invalid_argument,
                         fmt::format("rank {} cannot be excluded by rank {}", other, rank()), own().name,
                         "name other ranks of the group"};
        members &= ~(1u << other);
    }
    SIDESTEP_TRY(const auto answers,
                 service_->exchanges().call(Exchanges::Kind::shrink, {}, members, until, stop));
    next_ = members;
    Seating seating = seating_;
    seating.id = derived_id(answers.number, 0);
    seating.rank = std::popcount(members & ((1u << rank()) - 1));
    seating.ranks = std::popcount(members);
    return seating;
}

}  // namespace sidestep::collective
