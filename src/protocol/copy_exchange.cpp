#include "protocol/copy_exchange.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::protocol {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr unsigned slot_shift = 48;
// Blocks up to here follow each other in one lane: to begin each one for itself takes longer than they do.
constexpr std::uint64_t max_in_one_lane = 128 << 10;
// Blocks from here on follow each other in one lane too, and none goes before those of the ranks between have
// begun: one copy fills the links of a rank, and each rank is sent to by one other at a time.
constexpr std::uint64_t min_one_at_a_time = 8 << 20;

bool reachable(const Token& token) {
    return token.slot != Token::unreachable;
}

// Of a block that both ends know the way of.
std::uint64_t pieces_of(std::uint64_t bytes, bool in_lanes, const ArenaLayout& layout) {
    const std::uint64_t lane = layout.copy_lane_bytes();
    return in_lanes && bytes > lane ? (bytes + lane - 1) / lane : 1;
}

}  // namespace

CopyExchange::CopyExchange(const CollectiveTask& task, unsigned rank, unsigned ranks, CopyCounters& counters,
                           CopyEngine& engine)
    : task_(task), layout_{ranks}, me_(rank), ranks_(ranks), counters_(counters), engine_(engine) {
    ++counters_.turn;
    own_.pieces = task_.to[me_].bytes != 0 ? 1 : 0;
    for (unsigned i = 0; i + 1 < ranks_; ++i) invite(other(i));
}

void CopyExchange::invite(unsigned peer) {
    Peer& one = peers_[peer];
    const Block& block = task_.from[peer];
    one.in_lanes = block.bytes != 0 && !reachable(task_.from_tokens[peer]);
    one.in.pieces = pieces_of(block.bytes, one.in_lanes, layout_);
    const Token& token = task_.from_tokens[peer];
    CopyLine& line = engine_.row(peer).from[me_];
    line.signature.store(task_.signature, relaxed);
    line.bytes.store(block.bytes, relaxed);
    line.token.store(std::uint64_t{token.slot} << slot_shift | token.offset, relaxed);
    line.taken.store(0, relaxed);
    line.turn.store(counters_.turn, std::memory_order_release);
}

void CopyExchange::withdraw() {
    for (unsigned i = 0; i + 1 < ranks_; ++i)
        engine_.row(other(i)).from[me_].turn.store(0, std::memory_order_release);
}

Result<CopyExchange::State> CopyExchange::step() {
    moved_ = false;
    SIDESTEP_CHECK(begin_own());
    end_pieces(own_);
    bool in_order = true;
    for (unsigned i = 0; i + 1 < ranks_; ++i) {
        const unsigned peer = other(i);
        look_at(peer);
        if (fault_.kind != FaultKind::none) break;
        const bool large = task_.to[peer].bytes >= min_one_at_a_time;
        if (in_order || !large) SIDESTEP_CHECK(send(peer));
        in_order = in_order && (peers_[peer].out.started != 0 || !large);
        SIDESTEP_CHECK(receive(peer));
    }
    SIDESTEP_CHECK(mark_all());
    if (fault_.kind != FaultKind::none) return State::differs;
    if (over()) {
        for (unsigned i = 0; i + 1 < ranks_; ++i) {
            counters_.sent[other(i)] += peers_[other(i)].out.pieces;
            counters_.received[other(i)] += peers_[other(i)].in.pieces;
        }
        return State::ended;
    }
    if (moved_) return State::moved;
    return copying() ? State::copying : State::waiting;
}

bool CopyExchange::over() const {
    if (!own_.over()) return false;
    for (unsigned i = 0; i + 1 < ranks_; ++i) {
        const Peer& peer = peers_[other(i)];
        if (!peer.invited || !peer.out.over() || !peer.in.over()) return false;
    }
    return true;
}

bool CopyExchange::copying() const {
    const auto busy = [&](const Way& way) {
        for (std::uint64_t number = way.ended; number < way.started; ++number) {
            const Piece& piece = way.flight[number & 1];
            if (!ended(piece)) return true;
        }
        return false;
    };
    if (busy(own_)) return true;
    for (unsigned i = 0; i + 1 < ranks_; ++i) {
        const Peer& peer = peers_[other(i)];
        if (busy(peer.out) || (peer.in_lanes && busy(peer.in))) return true;
    }
    return false;
}

// Those who have not come first, then those who have not sent.
unsigned CopyExchange::missing() const {
    for (unsigned i = 0; i + 1 < ranks_; ++i)
        if (!peers_[other(i)].invited) return other(i);
    for (unsigned i = 0; i + 1 < ranks_; ++i)
        if (!peers_[other(i)].in.over() || !peers_[other(i)].out.over()) return other(i);
    return other(0);
}

Result<void> CopyExchange::copy(unsigned lane, Way& way, char* to, const char* from, std::uint64_t bytes) {
    Piece& piece = way.piece(way.started);
    piece = {lane, 0};
    if (bytes != 0 && to != from) {
        SIDESTEP_CHECK(engine_.copy(lane, to, from, bytes));
        // Who gets a large one hears of it while the next one goes.
        if (bytes >= min_one_at_a_time) {
            SIDESTEP_TRY(piece.mark, engine_.mark(lane));
        } else {
            unmarked_.push_back(&piece);
        }
    }
    ++way.started;
    moved_ = true;
    return {};
}

// One mark for all that was begun in a lane at a time.
Result<void> CopyExchange::mark_all() {
    std::uint64_t marks[CopyEngine::lanes] = {};
    for (Piece* const piece : unmarked_) {
        if (marks[piece->lane] == 0) {
            SIDESTEP_TRY(marks[piece->lane], engine_.mark(piece->lane));
        }
        piece->mark = marks[piece->lane];
    }
    unmarked_.clear();
    return {};
}

// Of what was marked in an earlier step, or took no copy.
void CopyExchange::end_pieces(Way& way) {
    while (way.ended < way.started) {
        Piece* const piece = &way.piece(way.ended);
        if (std::find(unmarked_.begin(), unmarked_.end(), piece) != unmarked_.end()) return;
        if (!ended(*piece)) return;
        ++way.ended;
        moved_ = true;
    }
}

Result<void> CopyExchange::begin_own() {
    if (own_.started == own_.pieces) return {};
    SIDESTEP_TRY(const bool ready, home_ready());
    if (!ready) return {};
    return copy(CopyEngine::home, own_, static_cast<char*>(task_.recv) + task_.from[me_].offset,
                static_cast<const char*>(task_.send) + task_.to[me_].offset, task_.to[me_].bytes);
}

void CopyExchange::look_at(unsigned peer) {
    Peer& one = peers_[peer];
    if (one.invited) return;
    const CopyLine& line = engine_.row(me_).from[peer];
    if (line.turn.load(std::memory_order_acquire) != counters_.turn) return;
    compare(peer, line);
    if (fault_.kind != FaultKind::none) return;
    one.invited = true;
    moved_ = true;
    const std::uint64_t bytes = task_.to[peer].bytes;
    const std::uint64_t token = line.token.load(relaxed);
    const auto slot = static_cast<unsigned>(token >> slot_shift);
    const bool in_lanes = bytes != 0 && slot == Token::unreachable;
    one.out.pieces = pieces_of(bytes, in_lanes, layout_);
    if (bytes == 0 || in_lanes) return;
    one.target = engine_.find(peer, slot, token & ((std::uint64_t{1} << slot_shift) - 1), bytes);
    // It names memory that is not mapped here, or no longer.
    if (one.target == nullptr) differ(FaultKind::mismatch, peer, task_.signature, bytes);
}

void CopyExchange::compare(unsigned peer, const CopyLine& line) {
    const auto signature = static_cast<std::uint32_t>(line.signature.load(relaxed));
    const std::uint64_t expected = line.bytes.load(relaxed);
    if (signature == task_.signature && expected == task_.to[peer].bytes) return;
    differ(signature != task_.signature ? FaultKind::mismatch : FaultKind::size_mismatch, peer, signature,
           expected);
}

void CopyExchange::differ(FaultKind kind, unsigned peer, std::uint32_t signature, std::uint64_t expected) {
    fault_.kind = kind;
    fault_.peer = peer;
    fault_.number = task_.number;
    fault_.signature = task_.signature;
    fault_.peer_signature = signature;
    fault_.bytes = task_.to[peer].bytes;
    fault_.peer_bytes = expected;
}

// Small blocks follow each other in the lane of the first other GPU, and so do large ones that go straight.
unsigned CopyExchange::lane_to(unsigned peer, bool straight) const {
    if (engine_.near(peer)) return CopyEngine::home;
    const std::uint64_t bytes = task_.to[peer].bytes;
    if (bytes > max_in_one_lane && !(straight && bytes >= min_one_at_a_time)) return peer;
    unsigned i = 0;
    while (engine_.near(other(i))) ++i;
    return other(i);
}

Result<void> CopyExchange::send(unsigned peer) {
    Peer& one = peers_[peer];
    const unsigned lane = lane_to(peer, !one.invited || one.target != nullptr);
    const bool begun = one.invited && one.out.started == one.out.pieces;
    bool ready = true;
    // Already while the other one is waited for, so that it is known once it comes.
    if (task_.to[peer].bytes != 0 && !begun && (one.invited || lane != CopyEngine::home)) {
        SIDESTEP_TRY(ready, lane == CopyEngine::home ? home_ready() : engine_.ready(lane));
    }
    if (!one.invited) return {};
    if (ready) SIDESTEP_CHECK(begin_to(peer, lane));
    const std::uint64_t before = one.out.ended;
    end_pieces(one.out);
    if (one.out.ended != before)
        engine_.row(peer).from[me_].delivered.store(counters_.sent[peer] + one.out.ended,
                                                    std::memory_order_release);
    return {};
}

// Streams of ranks that have yet to come would wait for this one's copies, and might be put before them.
Result<bool> CopyExchange::home_ready() {
    for (unsigned i = 0; i + 1 < ranks_; ++i)
        if (engine_.near(other(i)) && !peers_[other(i)].invited) return false;
    return engine_.ready(CopyEngine::home);
}

// What can be begun of a block, in a lane that is ready.
Result<void> CopyExchange::begin_to(unsigned peer, unsigned lane) {
    Peer& one = peers_[peer];
    const Block& block = task_.to[peer];
    const char* const from = static_cast<const char*>(task_.send) + block.offset;
    if (one.target != nullptr || block.bytes == 0)
        return one.out.started == 0 ? copy(lane, one.out, one.target, from, block.bytes) : Result<void>{};
    char* const arena = engine_.find(peer, 0, 0, 0);
    if (arena == nullptr)
        return Error{
            ErrorCode::internal, fmt::format("the arena of rank {} is not mapped", peer), "copies", {}};
    const std::uint64_t taken = engine_.row(me_).from[peer].taken.load(std::memory_order_acquire);
    const std::uint64_t max = layout_.copy_lane_bytes();
    while (one.out.started < one.out.pieces && one.out.started < taken + 2 &&
           one.out.started < one.out.ended + 2) {
        const std::uint64_t done = one.out.started * max;
        char* const to = arena + layout_.copy_lane(one.out.started & 1, peer, me_);
        SIDESTEP_CHECK(copy(lane, one.out, to, from + done, std::min(max, block.bytes - done)));
    }
    return {};
}

// A block that comes to where one goes out from: each piece has gone before the one that takes its place is
// copied out.
bool CopyExchange::in_place(unsigned peer) const {
    return task_.to[peer].bytes != 0 && task_.from[peer].bytes != 0 &&
           static_cast<const char*>(task_.send) + task_.to[peer].offset ==
               static_cast<const char*>(task_.recv) + task_.from[peer].offset;
}

Result<void> CopyExchange::receive(unsigned peer) {
    Peer& one = peers_[peer];
    const CopyLine& line = engine_.row(me_).from[peer];
    const std::uint64_t arrived =
        std::min(one.in.pieces, line.delivered.load(std::memory_order_acquire) - counters_.received[peer]);
    if (!one.in_lanes) {
        // A rank that withdraws its announcement moves nothing.
        moved_ = moved_ || arrived > one.in.ended;
        one.in.ended = std::max(one.in.ended, arrived);
        return {};
    }
    // Once the sender has come, though nothing may have arrived yet.
    bool ready = false;
    if (one.invited && one.in.started != one.in.pieces) {
        SIDESTEP_TRY(ready, home_ready());
    }
    const Block& block = task_.from[peer];
    const std::uint64_t max = layout_.copy_lane_bytes();
    while (ready && one.in.started < arrived && one.in.started < one.in.ended + 2) {
        const bool gone = one.out.over() || one.out.ended > one.in.started;
        if (in_place(peer) && !gone) break;
        const std::uint64_t done = one.in.started * max;
        const char* const from = engine_.find(me_, 0, layout_.copy_lane(one.in.started & 1, me_, peer), 0);
        SIDESTEP_CHECK(copy(CopyEngine::home, one.in, static_cast<char*>(task_.recv) + block.offset + done,
                            from, std::min(max, block.bytes - done)));
    }
    const std::uint64_t before = one.in.ended;
    end_pieces(one.in);
    if (one.in.ended != before)
        engine_.row(peer).from[me_].taken.store(one.in.ended, std::memory_order_release);
    return {};
}

bool send_overlaps_recv(const CollectiveTask& task, unsigned rank, unsigned ranks) {
    const auto place = [](const void* base, const Block& block) {
        return reinterpret_cast<std::uintptr_t>(base) + block.offset;
    };
    for (unsigned a = 0; a < ranks; ++a)
        for (unsigned b = 0; b < ranks; ++b) {
            if (a == rank || b == rank || task.to[a].bytes == 0 || task.from[b].bytes == 0) continue;
            const auto out = place(task.send, task.to[a]), in = place(task.recv, task.from[b]);
            if (out < in + task.from[b].bytes && in < out + task.to[a].bytes) return true;
        }
    return false;
}

}  // namespace sidestep::protocol
