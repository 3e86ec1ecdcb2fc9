#include "collective/work.hpp"

#include <algorithm>

#include "collective/tasks.hpp"
#include "protocol/pair_blocks.hpp"

namespace sidestep::collective {

using protocol::ArenaLayout;
using protocol::Shape;

namespace {

// Packets that arrive are polled while others still come in: what that adds to sending them. The same again
// where each rank combines all of them.
constexpr double polling = 0.5;

}  // namespace

std::uint64_t Works::block() const {
    return is(Collective::barrier) ? 0 : operation_.count * size_of(operation_.element);
}

std::uint64_t Works::owners() const {
    return owners_of_slices(operation_.collective, ranks_);
}

Work Works::work(Shape shape) const {
    switch (shape) {
        case Shape::packets:
        case Shape::coalesced:
            return {others() * block(),
                    block(),
                    1,
                    0,
                    true,
                    block(),
                    combines(operation_.collective) ? (1 + polling) * (1 + polling) : 1 + polling};
        case Shape::lamport: {
            Work work{others() * block(), block(), 1, 0, true, block(), 1 + polling};
            work.lamport = true;
            work.one_way = is(Collective::reduce);
            return work;
        }
        case Shape::packets_two_phase:
            return {2 * divided(), block(), 2, 0, true, block() / ranks_, 1 + polling};
        case Shape::lines:
            return lines_work();
        case Shape::slices: {
            Work work = slices_work();
            work.reads = facts_.wire == Wire::nvlink && facts_.full_mesh && ranks_ > 2 &&
                         combines(operation_.collective);
            return work;
        }
        case Shape::pushed_slices:
            return pushed_work();
        case Shape::pairs:
            return pairs_work();
        case Shape::copies:
            return copies_work();
        case Shape::ring:
            return ring_work();
    }
    return {};
}

// Sums go up in the type that they are accumulated in, and results down. What is only moved goes around. The
// rank in the middle sends in both directions; of two ranks each does in one.
Work Works::ring_work() const {
    const std::uint64_t all = is(Collective::reduce_scatter) ? ranks_ * block() : block();
    const std::uint64_t up =
        all / size_of(operation_.element) * protocol::accumulator_size_of(operation_.element);
    const int length = static_cast<int>(others());
    Work work;
    work.local = all;
    work.hops = 1 + (combines(operation_.collective) ? 2 * length : length);
    work.releases = work.hops;
    if (is(Collective::all_gather))
        work.bytes = others() * block();
    else if (is(Collective::broadcast))
        work.bytes = block();
    else if (is(Collective::reduce) && operation_.root == length)
        work.bytes = up;
    else
        work.bytes = ranks_ == 2 ? std::max(up, block())
                                 : up + (is(Collective::reduce_scatter) ? others() * block() : block());
    return work;
}

// A broadcast has two tasks where it is cut. A rank's own block is copied beside the others.
Work Works::copies_work() const {
    const bool cut = is(Collective::broadcast) && cuts_broadcast_of_copies(block(), ranks_);
    Work work;
    work.tasks = cut ? 2 : 1;
    work.bytes = ranks_ == 1 ? 0 : cut ? 2 * block() : pairs_bytes();
    work.local = block();
    work.hops = work.tasks;
    return work;
}

// One phase where every owner is the only target, or the only source; of a root and another rank either is.
Work Works::lines_work() const {
    Work work;
    work.packets = work.lines = true;
    work.one_way = has_root(operation_.collective);
    work.local = block();
    work.each = block() / owners();
    work.hops = owners() > 1 ? 2 : 1;
    work.bytes = has_root(operation_.collective) ? block() : others() * block();
    if (is(Collective::all_reduce)) work.bytes = 2 * divided();
    return work;
}

// block * (n - 1) / n
std::uint64_t Works::divided() const {
    return block() / ranks_ * others() + block() % ranks_ * others() / ranks_;
}

// Two barriers; bytes that are fetched come one hop later than those that are pushed.
Work Works::slices_work() const {
    constexpr int barriers = 2;
    constexpr int fetched = 1;
    if (!facts_.full_mesh && ranks_ > 1) return slices_through_host_memory();
    switch (operation_.collective) {
        case Collective::all_reduce:
            return {2 * divided(), block(), barriers + fetched, barriers, false};
        case Collective::all_gather:
            return {others() * block(), block(), barriers, barriers, false};
        case Collective::reduce_scatter:
            return {others() * block(), block(), barriers + fetched, barriers, false};
        default:
            break;
    }
    return {ranks_ == 1 ? 0 : block(), block(), barriers + fetched, barriers, false};
}

// The first pieces have to come before anything is combined, and the last turns have nothing to push. An all_reduce hides some of
// that, since it moves bytes both ways at a time: pushed it took 3 us more at 8 MiB and 6 less at 32, reduce and reduce_scatter
// 8 to 20 more (four H200, docs/lab-book.md, "Larger pieces"). Between two ranks it is even from 20 MiB on.
Work Works::pushed_work() const {
    Work work = slices_work();
    work.hops += 1;
    work.releases += !is(Collective::all_reduce) ? 16 : ranks_ == 2 ? 1 : 4;
    return work;
}

// Every rank puts what others read of it into its arena, and takes what they wrote out of it, over its own
// link.
Work Works::slices_through_host_memory() const {
    std::uint64_t bytes = block() + (block() + others() - 1) / others();
    std::uint64_t slice = block() / others();
    if (is(Collective::all_reduce)) {
        bytes = 2 * block();
        slice = block() / ranks_;
    } else if (is(Collective::all_gather) || is(Collective::reduce_scatter)) {
        bytes = (ranks_ + 1) * block();
        slice = block();
    }
    const std::uint64_t pass =
        ArenaLayout{ranks_}.stage_bytes() * static_cast<std::uint64_t>(std::max(figures_.max_blocks, 1));
    const int barriers =
        1 + 2 * static_cast<int>(std::min<std::uint64_t>((slice + pass - 1) / pass, 1 << 20));
    return {bytes, bytes, barriers, barriers, false};
}

Work Works::pairs_work() const {
    const std::uint64_t max = longest_pair();
    const bool eager = ranks_ > 1 && max > 0 && protocol::is_eager(max, ranks_, eager_max_);
    return eager ? eager_pairs(pairs_bytes(), max) : direct_pairs(pairs_bytes(), block());
}

// Packets, which leave before anything is heard.
Work Works::eager_pairs(std::uint64_t bytes, std::uint64_t each) {
    return {bytes, each, 1, 0, true, each, 1 + polling};
}
Work Works::direct_pairs(std::uint64_t bytes, std::uint64_t local) {
    return {bytes, local, 2, 1, false};
}

// The longest block of one pair, as far as this rank knows; 0: not at all.
std::uint64_t Works::longest_pair() const {
    std::uint64_t max = 0;
    if (is(Collective::send_recv)) {
        for (const PairItem& item : operation_.pairs) max = std::max(max, item.bytes);
        return max;
    }
    if (!is(Collective::all_to_all_v)) return block();
    const BlockLists& lists = operation_.blocks;
    if (lists.on_device || lists.send_counts == nullptr || lists.recv_counts == nullptr) return 0;
    for (unsigned r = 0; r < ranks_; ++r) max = std::max({max, lists.send_counts[r], lists.recv_counts[r]});
    return max * size_of(operation_.element);
}

// As far as this rank knows them.
std::uint64_t Works::pairs_bytes() const {
    if (is(Collective::all_to_all_v)) {
        const BlockLists& lists = operation_.blocks;
        if (lists.on_device || lists.send_counts == nullptr || lists.recv_counts == nullptr) return 0;
        std::uint64_t sent = 0, received = 0;
        for (unsigned r = 0; r < ranks_; ++r) {
            sent += lists.send_counts[r];
            received += lists.recv_counts[r];
        }
        return std::max(sent, received) * size_of(operation_.element);
    }
    if (!is(Collective::send_recv)) return others() * block();
    std::uint64_t sent = 0, received = 0;
    for (const PairItem& item : operation_.pairs) (item.sends ? sent : received) += item.bytes;
    return std::max(sent, received);
}

}  // namespace sidestep::collective
