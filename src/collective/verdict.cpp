#include "collective/verdict.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sidestep::collective {
namespace {

// How long an operation may go on after a rank has ended within it: packets that it had sent are there at once.
constexpr std::uint64_t grace_ns = 1'000'000'000;
constexpr const char* hint_of_mismatch = "every rank calls the same operations in the same order";

// What the peer did where this rank did `own`.
std::optional<Noted> counterpart(const FaultSeen& fault, const BoardFile& board,
                                 const std::optional<Noted>& own) {
    if (own) {
        const auto same = board.find_step(fault.record.peer, own->step);
        if (same && own->collective != Collective::send_recv) return same;
    }
    if (fault.record.peer_signature == 0) return std::nullopt;
    for (std::uint64_t at = 0; at < BoardFile::remembered; ++at) {
        const std::uint64_t last = board.rows[fault.record.peer].enqueued.load();
        const auto noted = at < last ? board.find(fault.record.peer, last - at) : std::nullopt;
        if (noted && noted->signature == fault.record.peer_signature) return noted;
    }
    return std::nullopt;
}

// Where most ranks run the same as an operation of all, the others are the ones to look at. Nothing where there is no
// majority of at least two.
std::optional<Error> odd_ones(const FaultSeen& fault, const BoardFile& board,
                              const std::optional<Noted>& own) {
    if (!own || own->collective == Collective::send_recv) return std::nullopt;
    std::map<std::uint32_t, std::vector<std::pair<unsigned, Noted>>> ranks_of;
    std::size_t known = 0;
    for (unsigned rank = 0; rank < board.how_many(); ++rank) {
        const auto noted = board.find_step(rank, own->step);
        if (!noted) continue;
        ranks_of[noted->signature].emplace_back(rank, *noted);
        ++known;
    }
    const auto larger = [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); };
    const auto most = std::max_element(ranks_of.begin(), ranks_of.end(), larger);
    if (ranks_of.size() < 2 || 2 * most->second.size() <= known) return std::nullopt;
    std::vector<std::string> odd;
    for (const auto& [signature, ranks] : ranks_of)
        for (const auto& [rank, noted] : ranks)
            if (signature != most->first)
                odd.push_back(fmt::format("rank {} (process {}, {}) runs {}", rank,
                                          board.rows[rank].process.load(), board.rows[rank].place.load(),
                                          noted.text()));
    return Error{ErrorCode::mismatch,
                 fmt::format("{} as operation {}, the other {} ranks {}", fmt::join(odd, ", "), own->step,
                             most->second.size(), most->second.front().second.text()),
                 fault.me, hint_of_mismatch};
}

// Its part of the operation is not known to have been missing before: it ended by exit() within, or kernels of a graph
// wait for it.
Error left(const FaultSeen& fault, const std::string& what, const std::string& and_so) {
    return {ErrorCode::io_error,
            fmt::format("{} left the group without having ended {}, {}", fault.peer, what, and_so),
            fault.me,
            {}};
}

Error timed_out(const FaultSeen& fault, const BoardFile& board, const std::optional<Noted>& own) {
    const std::string what = own ? own->numbered() : fmt::format("operation {}", fault.record.number);
    const auto last = board.last(fault.record.peer);
    const std::string waited = fmt::format("and {} waited {:g} s for it", fault.me, fault.deadline_s);
    const bool pair = own && own->collective == Collective::send_recv;
    Error error{ErrorCode::timed_out, {}, fault.me, "it hangs, is stopped, or waits for something else"};
    if (own && !pair && last && last->step >= own->step) {
        const auto theirs = board.find_step(fault.record.peer, own->step);
        if (theirs && theirs->signature != own->signature) {
            if (const auto odd = odd_ones(fault, board, own)) return *odd;
            error.code = ErrorCode::mismatch;
            error.message = fmt::format("{} runs {} as operation {}, {} {}", fault.peer, theirs->text(),
                                        own->step, fault.me, own->text());
            error.hint = hint_of_mismatch;
            return error;
        }
        if (board.rows[fault.record.peer].state.load() == BoardFile::left) return left(fault, what, waited);
        error.message = fmt::format("{} enqueued {} too, but did not go on within {:g} s", fault.peer, what,
                                    fault.deadline_s);
        // A count of 0 is not posted: such a rank waits for no other.
        if (own->collective == Collective::all_to_all_v)
            error.hint =
                "it hangs, is stopped, or one of the two counts 0 elements between them and the other does "
                "not";
        return error;
    }
    if (board.rows[fault.record.peer].state.load() == BoardFile::left) return left(fault, what, waited);
    error.message = fmt::format(
        "{} did not come to {}, within {:g} s; {}", fault.peer, what, fault.deadline_s,
        last ? fmt::format("its last one: {}", last->numbered()) : std::string("it has run none"));
    return error;
}

// "in operation 3, send_recv with rank 1", where it is known that this is the one that `rank` is in.
std::string where(unsigned rank, unsigned peer, const BoardFile& board) {
    const BoardFile::Row& row = board.rows[rank];
    const auto oldest = board.oldest_unfinished(rank);
    const bool known = row.counts.load() != 0 || row.enqueued.load() - row.done.load() <= 1;
    if (!known || !oldest || (oldest->peers >> peer & 1) == 0) return {};
    return ", in " + oldest->numbered();
}

// What is still remembered of what is not known to have ended.
std::vector<Noted> unfinished(const BoardFile& board, unsigned rank) {
    std::vector<Noted> found;
    const std::uint64_t enqueued = board.rows[rank].enqueued.load(std::memory_order_acquire);
    const std::uint64_t done = board.rows[rank].done.load(std::memory_order_acquire);
    const std::uint64_t begin =
        std::max(done, enqueued - std::min<std::uint64_t>(enqueued, BoardFile::remembered));
    // `enqueued`, which the other rank wrote, may be the greatest number there is.
    for (std::uint64_t number = begin; number < enqueued; ++number)
        if (const auto noted = board.find(rank, number + 1)) found.push_back(*noted);
    return found;
}

bool same_operation(const Noted& own, unsigned rank, const Noted& theirs, unsigned peer) {
    const bool pairs = own.collective == Collective::send_recv;
    if (pairs != (theirs.collective == Collective::send_recv)) return false;
    return pairs ? (own.peers >> peer & 1) != 0 && (theirs.peers >> rank & 1) != 0 : own.step == theirs.step;
}

// Rank `gone` ended by exit() within an operation that `rank` is in, and has been in for a while since.
std::optional<Error> explain_exit(const DepartureSeen& seen, const BoardFile& board) {
    if (seen.ended_ns == 0 || seen.now_ns < seen.ended_ns + grace_ns) return std::nullopt;
    const std::vector<Noted> left = unfinished(board, seen.gone);
    if (left.empty()) return std::nullopt;
    for (const Noted& own : unfinished(board, seen.rank)) {
        if (seen.now_ns < own.time_ns + grace_ns) continue;
        const auto theirs = std::find_if(left.begin(), left.end(), [&](const Noted& one) {
            return same_operation(own, seen.rank, one, seen.gone);
        });
        if (theirs == left.end()) continue;
        return Error{ErrorCode::io_error,
                     fmt::format("{} ended within {}, and {} is in {}", seen.who, theirs->numbered(), seen.me,
                                 own.numbered()),
                     seen.me,
                     {}};
    }
    return std::nullopt;
}

}  // namespace

Error explain_fault(const FaultSeen& fault, const BoardFile& board) {
    const auto own = board.find(fault.rank, fault.record.number);
    const std::string what = own ? own->text() : fmt::format("operation {}", fault.record.number);
    const std::string numbered = own ? own->numbered() : what;
    switch (fault.record.kind) {
        case protocol::FaultKind::timed_out:
            return timed_out(fault, board, own);
        case protocol::FaultKind::mismatch: {
            if (fault.record.peer_signature == fault.record.signature && fault.record.peer_signature != 0) {
                // What is mapped of a rank goes when it leaves.
                if (board.rows[fault.record.peer].state.load() == BoardFile::left)
                    return left(fault, numbered, fmt::format("which {} is in", fault.me));
                return Error{ErrorCode::io_error,
                             fmt::format("{} names memory that {} does not have of it, in {}", fault.peer,
                                         fault.me, numbered),
                             fault.me,
                             {}};
            }
            if (const auto odd = odd_ones(fault, board, own)) return *odd;
            const auto theirs = counterpart(fault, board, own);
            return Error{
                ErrorCode::mismatch,
                fmt::format("{} runs {} as operation {}, {} {}", fault.peer,
                            theirs ? theirs->text()
                                   : fmt::format("something else ({:08x})", fault.record.peer_signature),
                            own ? own->label() : fault.record.number, fault.me, what),
                fault.me, hint_of_mismatch};
        }
        case protocol::FaultKind::size_mismatch:  // which the sender finds
            return Error{ErrorCode::mismatch,
                         fmt::format("{} sends {} bytes to {}, which expects {}, in {}", fault.me,
                                     fault.record.bytes, fault.peer, fault.record.peer_bytes, numbered),
                         fault.me, "what one rank sends is what the other one receives"};
        case protocol::FaultKind::overlapped:
            return Error{ErrorCode::internal,
                         fmt::format("{} was at work on two operations at the same time, one of them {}",
                                     fault.me, numbered),
                         fault.me, "what they wrote is not to be used"};
        default:
            return Error{
                ErrorCode::cancelled, fmt::format("{} aborted its operations", fault.me), fault.me, {}};
    }
}

std::optional<protocol::FaultRecord> find_difference(unsigned rank, const BoardFile& board) {
    for (const Noted& own : unfinished(board, rank))
        for (unsigned peer = 0; peer < board.how_many(); ++peer)
            for (const Noted& theirs : unfinished(board, peer))
                if (own.collective != Collective::send_recv && same_operation(own, rank, theirs, peer) &&
                    own.signature != theirs.signature)
                    return protocol::FaultRecord{protocol::FaultKind::mismatch, peer, own.number,
                                                 own.signature, theirs.signature};
    return std::nullopt;
}

Error explain_death(const DeathSeen& death, const BoardFile& board) {
    const auto last = board.last(death.dead);
    std::string message =
        fmt::format("{} died; {}", death.who,
                    last ? fmt::format("its last one was {}", last->numbered()) : "it had run no operation");
    if (const auto own = board.oldest_unfinished(death.rank))
        message += fmt::format(", and {} is in {}", death.me, own->numbered());
    return {ErrorCode::io_error, std::move(message), death.me, "or it ended without leaving the group"};
}

std::optional<Error> explain_departure(const DepartureSeen& seen, const BoardFile& board) {
    const BoardFile::Row& own = board.rows[seen.rank];
    const BoardFile::Row& gone = board.rows[seen.gone];
    const auto error = [&](std::string message) {
        return Error{ErrorCode::io_error, std::move(message), seen.me, {}};
    };
    if (own.steps.load(std::memory_order_acquire) > seen.steps) {
        const auto noted = board.find_step(seen.rank, seen.steps + 1);
        return error(fmt::format("{} left the group before operation {}{}{}", seen.who, seen.steps + 1,
                                 noted ? ", " : "", noted ? noted->text() : ""));
    }
    // What was captured alone, for a graph, is not under way.
    if (own.done.load(std::memory_order_acquire) >= own.enqueued.load(std::memory_order_acquire))
        return std::nullopt;
    const bool receives = own.received[seen.gone].load(std::memory_order_acquire) >
                          gone.sent[seen.rank].load(std::memory_order_acquire);
    const bool sends = own.sent[seen.gone].load(std::memory_order_acquire) >
                       gone.received[seen.rank].load(std::memory_order_acquire);
    if (!receives && !sends) return explain_exit(seen, board);
    return error(fmt::format("{} left the group before it {} what {} {}{}", seen.who,
                             receives ? "sent" : "received", seen.me, receives ? "receives" : "sends",
                             where(seen.rank, seen.gone, board)));
}

}  // namespace sidestep::collective
