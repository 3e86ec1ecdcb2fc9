// What makes a call senseless by itself, before any other rank is asked.
#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "collective/operation.hpp"

namespace sidestep::collective {

using protocol::Combine;

namespace {

// Offsets of tokens (src/protocol/collective_task.hpp), and of any address of today's machines, stay below.
constexpr std::uint64_t max_bytes = std::uint64_t{1} << 47;

// One call as seen by one rank.
struct Call {
    const Operation& operation;
    int rank;
    int ranks;

    Error error(std::string message, std::string hint = {}) const {
        return {ErrorCode::invalid_argument, std::move(message), std::string(to_string(operation.collective)),
                std::move(hint)};
    }
    bool is(Collective collective) const { return operation.collective == collective; }
    bool at_root() const { return rank == operation.root; }
    std::uint64_t element_bytes() const { return size_of(operation.element); }
    // Of one rank's block.
    std::uint64_t block() const { return operation.count * element_bytes(); }
    std::uint64_t all_blocks() const { return block() * static_cast<std::uint64_t>(ranks); }
};

struct Range {
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
    std::uint64_t end() const { return begin + bytes; }
};

bool overlap(const Range& a, const Range& b) {
    return a.bytes > 0 && b.bytes > 0 && a.begin < b.end() && b.begin < a.end();
}

Range range_of(const void* address, std::uint64_t offset, std::uint64_t bytes) {
    return {reinterpret_cast<std::uintptr_t>(address) + offset, bytes};
}

// What the rank's two buffers hold, and where recv lies from send when they are used in place. Buffers
// that the rank does not look at have no bytes.
struct Buffers {
    std::uint64_t send = 0;
    std::uint64_t recv = 0;
    std::int64_t in_place = 0;
};

// In place as NCCL defines it. Source: nccl.h of NCCL 2.28.9, the comment of each operation. all_to_all it
// leaves open; here it may be in place as well.
Buffers buffers_of(const Call& call) {
    const auto own = static_cast<std::int64_t>(call.block()) * call.rank;
    switch (call.operation.collective) {
        case Collective::all_reduce:
            return {call.block(), call.block(), 0};
        case Collective::broadcast:
            return {call.at_root() ? call.block() : 0, call.block(), 0};
        case Collective::reduce:
            return {call.block(), call.at_root() ? call.block() : 0, 0};
        case Collective::all_gather:
            return {call.block(), call.all_blocks(), -own};
        case Collective::reduce_scatter:
            return {call.all_blocks(), call.block(), own};
        case Collective::all_to_all:
            return {call.all_blocks(), call.all_blocks(), 0};
        case Collective::gather:
            return {call.block(), call.at_root() ? call.all_blocks() : 0, -own};
        case Collective::scatter:
            return {call.at_root() ? call.all_blocks() : 0, call.block(), own};
        case Collective::all_to_all_v:
        case Collective::send_recv:
        case Collective::barrier:
            break;
    }
    return {};
}

std::string in_place_words(const Call& call) {
    switch (call.operation.collective) {
        case Collective::all_gather:
            return "send == recv + rank * count";
        case Collective::reduce_scatter:
            return "recv == send + rank * count";
        case Collective::gather:
            return "send == recv + root * count on the root";
        case Collective::scatter:
            return "recv == send + root * count on the root";
        default:
            return "send == recv";
    }
}

Result<void> check_group(const Call& call) {
    if (call.ranks < 1 || call.ranks > static_cast<int>(protocol::max_ranks))
        return call.error(
            fmt::format("a group of {} ranks: from 1 to {} are possible", call.ranks, protocol::max_ranks));
    if (call.rank < 0 || call.rank >= call.ranks)
        return call.error(fmt::format("rank {} of a group of {}", call.rank, call.ranks));
    const int root = call.operation.root;
    if (has_root(call.operation.collective) && (root < 0 || root >= call.ranks))
        return call.error(fmt::format("root {} in a group of {} ranks", root, call.ranks));
    return {};
}

Result<void> check_combine(const Call& call) {
    const bool wanted = combines(call.operation.collective);
    const bool given = call.operation.combine != Combine::none;
    if (wanted && !given) return call.error("no reduction operator was given");
    if (!wanted && given)
        return call.error(
            fmt::format("combines nothing, but was given {}", to_string(call.operation.combine)));
    if (static_cast<unsigned>(call.operation.element) >= protocol::elements)
        return call.error("unknown element type");
    return {};
}

// Multiplication by ranks and by the size of an element stays within `max_bytes`.
Result<void> check_count(const Call& call) {
    const std::uint64_t each = call.element_bytes() * static_cast<std::uint64_t>(call.ranks);
    if (call.operation.count <= max_bytes / each) return {};
    return call.error(fmt::format("{} elements of {} for {} ranks are more bytes than an address space has",
                                  call.operation.count, to_string(call.operation.element), call.ranks));
}

Result<void> check_buffers(const Call& call) {
    const Operation& operation = call.operation;
    SIDESTEP_CHECK(check_count(call));
    const Buffers buffers = buffers_of(call);
    if (buffers.send > 0 && operation.send == nullptr)
        return call.error(
            fmt::format("the send buffer is null, but {} are sent", format_bytes(buffers.send)));
    if (buffers.recv > 0 && operation.recv == nullptr)
        return call.error(
            fmt::format("the receive buffer is null, but {} are received", format_bytes(buffers.recv)));
    const Range send = range_of(operation.send, 0, buffers.send);
    const Range recv = range_of(operation.recv, 0, buffers.recv);
    const bool in_place = recv.begin == send.begin + static_cast<std::uint64_t>(buffers.in_place);
    if (in_place || !overlap(send, recv)) return {};
    return call.error("send and receive buffer overlap, and not as in place",
                      fmt::format("in place means {}", in_place_words(call)));
}

Result<std::vector<Range>> ranges_of(const Call& call, const void* base, const std::uint64_t* counts,
                                     const std::uint64_t* offsets, std::string_view side) {
    std::vector<Range> ranges;
    const std::uint64_t max = max_bytes / call.element_bytes();
    for (int rank = 0; rank < call.ranks; ++rank) {
        if (counts[rank] > max || (counts[rank] > 0 && offsets[rank] > max - counts[rank]))
            return call.error(
                fmt::format("the {} block of rank {} ({} elements at {}) lies beyond any address "
                            "space",
                            side, rank, counts[rank], offsets[rank]));
        if (counts[rank] > 0 && base == nullptr)
            return call.error(fmt::format("the {} buffer is null, but the block of rank {} has {} elements",
                                          side, rank, counts[rank]));
        ranges.push_back(counts[rank] == 0 ? Range{}
                                           : range_of(base, offsets[rank] * call.element_bytes(),
                                                      counts[rank] * call.element_bytes()));
    }
    return ranges;
}

Result<void> check_lists(const Call& call) {
    const BlockLists& lists = call.operation.blocks;
    if (lists.send_counts == nullptr || lists.send_offsets == nullptr || lists.recv_counts == nullptr ||
        lists.recv_offsets == nullptr)
        return call.error("one of the four lists of blocks is null");
    // What they hold is known only when the operation runs.
    if (lists.on_device) return {};
    SIDESTEP_TRY(const auto send,
                 ranges_of(call, call.operation.send, lists.send_counts, lists.send_offsets, "send"));
    SIDESTEP_TRY(const auto recv,
                 ranges_of(call, call.operation.recv, lists.recv_counts, lists.recv_offsets, "receive"));
    const auto own = static_cast<std::size_t>(call.rank);
    if (send[own].bytes != recv[own].bytes)
        return call.error(fmt::format("rank {} sends {} elements to itself, but receives {}", call.rank,
                                      lists.send_counts[own], lists.recv_counts[own]));
    for (std::size_t a = 0; a < recv.size(); ++a) {
        for (std::size_t b = 0; b < a; ++b)
            if (overlap(recv[a], recv[b]))
                return call.error(fmt::format("the receive blocks of ranks {} and {} overlap", b, a));
        for (std::size_t b = 0; b < send.size(); ++b)
            if (overlap(recv[a], send[b]))
                return call.error(fmt::format(
                    "the receive block of rank {} overlaps the send block of rank {}: not possible in place",
                    a, b));
    }
    return {};
}

// Calls that share a launch run side by side: what one writes no other may touch.
Result<void> check_coalesced(const Call& call) {
    std::vector<std::pair<Range, Range>> seen;  // send, receive
    for (const CoalescedItem& item : call.operation.coalesced) {
        Operation alone = call.operation;
        alone.count = item.count;
        const Buffers buffers = buffers_of(Call{alone, call.rank, call.ranks});
        const Range send = range_of(item.send, 0, buffers.send);
        const Range recv = range_of(item.recv, 0, buffers.recv);
        for (const auto& [other_send, other_recv] : seen)
            if (overlap(recv, other_recv) || overlap(recv, other_send) || overlap(send, other_recv))
                return call.error("of two calls made together one writes what the other reads or writes",
                                  "make them one after the other");
        seen.emplace_back(send, recv);
    }
    return {};
}

// That blocks of one group overlap is left to the caller: programs that never look at the result do it.
Result<void> check_pairs(const Call& call) {
    std::vector<std::uint64_t> sent, received;
    for (const PairItem& item : call.operation.pairs) {
        const char* verb = item.sends ? "send to" : "receive from";
        if (item.peer < 0 || item.peer >= call.ranks)
            return call.error(fmt::format("{} rank {} in a group of {} ranks", verb, item.peer, call.ranks));
        if (item.bytes > max_bytes)
            return call.error(fmt::format("{} rank {}: {} bytes are more than an address space has", verb,
                                          item.peer, item.bytes));
        if (item.bytes > 0 && item.data == nullptr)
            return call.error(fmt::format("{} rank {}: the buffer is null, but {} are moved", verb, item.peer,
                                          format_bytes(item.bytes)));
        if (item.peer == call.rank && item.bytes > 0) (item.sends ? sent : received).push_back(item.bytes);
    }
    if (sent == received) return {};
    if (sent.size() != received.size())
        return call.error(fmt::format("rank {} sends {} blocks to itself, but receives {}", call.rank,
                                      sent.size(), received.size()),
                          "put both between begin_calls() and end_calls()");
    const auto [a, b] = std::mismatch(sent.begin(), sent.end(), received.begin());
    return call.error(fmt::format("rank {} sends {} bytes to itself, but receives {}", call.rank, *a, *b));
}

}  // namespace

Result<void> check(const Operation& operation, int rank, int ranks) {
    const Call call{operation, rank, ranks};
    SIDESTEP_CHECK(check_group(call));
    SIDESTEP_CHECK(check_combine(call));
    if (call.is(Collective::barrier)) return {};
    if (call.is(Collective::all_to_all_v)) return check_lists(call);
    if (call.is(Collective::send_recv)) return check_pairs(call);
    if (!operation.coalesced.empty()) return check_coalesced(call);
    return check_buffers(call);
}

}  // namespace sidestep::collective
