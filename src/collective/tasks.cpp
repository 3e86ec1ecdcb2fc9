// Each collective in each shape that carries it, as the tasks of one rank.
#include "collective/tasks.hpp"

#include <algorithm>

#include "protocol/pair_blocks.hpp"

namespace sidestep::collective {

using protocol::ArenaLayout;
using protocol::Block;
using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Element;
using protocol::Shape;
using protocol::Share;
using protocol::share_of;
using protocol::Slice;

namespace {

// Where slices are cut: whole 128-byte lines of memory for large ones, whole packets for small ones.
constexpr std::uint64_t line_bytes = 128;
constexpr std::uint64_t packet_bytes = 16;
// Below it a broadcast by copies is not worth a second round of words.
constexpr std::uint64_t min_cut_broadcast = 1 << 20;

std::uint16_t bit(unsigned rank) {
    return static_cast<std::uint16_t>(1u << rank);
}

std::uint64_t address(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

// The n-th owner of a slice among all ranks but the root.
unsigned without_root(unsigned rank, unsigned root) {
    return rank < root ? rank : rank - 1;
}

class Maker {
public:
    Maker(const Operation& operation, const Choice& choice, int rank, int ranks)
        : operation_(operation),
          choice_(choice),
          me_(static_cast<unsigned>(rank)),
          ranks_(static_cast<unsigned>(ranks)),
          root_(static_cast<unsigned>(operation.root)) {}

    std::vector<CollectiveTask> make() const {
        if (!carries(choice_.shape, operation_.collective) || moves_nothing()) return {};
        switch (choice_.shape) {
            case Shape::packets:
                return packets(ArenaLayout{ranks_}.packet_payload());
            case Shape::lamport:
                return packets(ArenaLayout{ranks_}.lamport_payload());
            case Shape::packets_two_phase:
                return pieces(ArenaLayout{ranks_}.packet_payload());
            case Shape::lines:
                return pieces(ArenaLayout{ranks_}.lines_payload());
            case Shape::slices:
            case Shape::pushed_slices:
                return {slices()};
            case Shape::pairs:
                return pairs();
            case Shape::copies:
                return copies();
            case Shape::ring:
                return {ring()};
            case Shape::coalesced:
                return {coalesced()};
        }
        return {};
    }

private:
    // Of one rank's part, as the call counts.
    std::uint64_t block() const { return operation_.count * size_of(operation_.element); }
    bool at_root() const { return me_ == root_; }
    std::uint16_t all() const { return static_cast<std::uint16_t>((1u << ranks_) - 1); }

    bool moves_nothing() const {
        switch (operation_.collective) {
            case Collective::barrier:
                return ranks_ == 1;
            case Collective::all_to_all_v:
            case Collective::send_recv:
                return false;
            default:
                break;
        }
        if (operation_.count == 0) return true;
        return ranks_ == 1 && operation_.send == operation_.recv && operation_.combine != Combine::scaled_sum;
    }

    CollectiveTask blank() const {
        CollectiveTask task;
        task.shape = choice_.shape;
        // What combines nothing is counted in bytes.
        task.element = combines(operation_.collective) ? operation_.element : Element::u8;
        task.combine = combines(operation_.collective) ? operation_.combine : Combine::none;
        task.eager_max = choice_.eager_max;
        task.pair_blocks_max = choice_.pair_blocks_max;
        task.blocks =
            static_cast<std::uint8_t>(std::clamp(choice_.blocks, 1, static_cast<int>(protocol::max_blocks)));
        task.signature = signature_of(operation_);
        task.send = operation_.send;
        task.recv = operation_.recv;
        if (task.combine == Combine::scaled_sum) {
            task.scale = operation_.scale;
            task.device_scale = operation_.device_scale;
        }
        return task;
    }

    // `to` and `from` of a whole operation, of any size.
    void fill_blocks(CollectiveTask& task) const {
        const std::uint64_t bytes = block();
        for (unsigned r = 0; r < ranks_; ++r) {
            const Block nth{r * bytes, bytes};
            const Block first{0, bytes};
            switch (operation_.collective) {
                case Collective::all_reduce:
                    set(task, r, first, first);
                    break;
                case Collective::reduce:
                    set(task, r, r == root_ ? first : Block{}, at_root() ? first : Block{});
                    break;
                case Collective::reduce_scatter:
                    set(task, r, nth, first);
                    break;
                case Collective::all_gather:
                    set(task, r, first, nth);
                    break;
                case Collective::broadcast:
                    set(task, r, at_root() ? first : Block{}, r == root_ ? first : Block{});
                    break;
                case Collective::gather:
                    set(task, r, r == root_ ? first : Block{}, at_root() ? nth : Block{});
                    break;
                case Collective::scatter:
                    set(task, r, at_root() ? nth : Block{}, r == root_ ? first : Block{});
                    break;
                case Collective::all_to_all:
                    set(task, r, nth, nth);
                    break;
                case Collective::all_to_all_v:
                    set_listed(task, r);
                    break;
                case Collective::send_recv:
                case Collective::barrier:
                    break;
            }
        }
        if (task.combine == Combine::none) skip_copy_onto_itself(task);
    }

    static void set(CollectiveTask& task, unsigned rank, Block to, Block from) {
        task.to[rank] = to;
        task.from[rank] = from;
    }

    void set_listed(CollectiveTask& task, unsigned rank) const {
        const BlockLists& lists = operation_.blocks;
        const std::uint64_t size = size_of(operation_.element);
        if (lists.send_counts[rank] > 0)
            task.to[rank] = {lists.send_offsets[rank] * size, lists.send_counts[rank] * size};
        if (lists.recv_counts[rank] > 0)
            task.from[rank] = {lists.recv_offsets[rank] * size, lists.recv_counts[rank] * size};
    }

    void skip_copy_onto_itself(CollectiveTask& task) const {
        const std::uint64_t from = address(task.send) + task.to[me_].offset;
        if (from == address(task.recv) + task.from[me_].offset) set(task, me_, {}, {});
    }

    // `max`: the largest block.
    std::vector<CollectiveTask> packets(std::uint64_t max) const {
        CollectiveTask whole = blank();
        fill_blocks(whole);
        std::vector<CollectiveTask> tasks;
        // Every rank cuts by the bytes of the call, whichever of its own blocks are empty.
        const std::uint64_t bytes = operation_.collective == Collective::barrier ? 0 : block();
        std::uint64_t done = 0;
        do {
            CollectiveTask task = whole;
            for (unsigned r = 0; r < ranks_; ++r) {
                task.to[r] = piece(whole.to[r], done, max);
                task.from[r] = piece(whole.from[r], done, max);
            }
            tasks.push_back(task);
            done += max;
        } while (done < bytes);
        return tasks;
    }

    CollectiveTask coalesced() const {
        CollectiveTask task = blank();
        const Collective collective = operation_.collective;
        task.send_blocks = collective == Collective::reduce_scatter || collective == Collective::all_to_all;
        task.recv_blocks = !combines(collective);
        std::uint64_t unit = 0;
        for (const CoalescedItem& item : operation_.coalesced) {
            const protocol::CoalescedCall call{address(item.send) - address(task.send),
                                               address(item.recv) - address(task.recv),
                                               item.count * size_of(operation_.element), unit};
            task.set_call(task.calls++, call);
            unit = call.end();
        }
        return task;
    }

    static Block piece(const Block& whole, std::uint64_t begin, std::uint64_t max) {
        if (whole.bytes <= begin) return {};
        return {whole.offset + begin, std::min(whole.bytes - begin, max)};
    }

    // What is cut into slices, in elements of a task.
    std::uint64_t whole() const { return combines(operation_.collective) ? operation_.count : block(); }

    // `held`: the largest slice, in bytes.
    std::vector<CollectiveTask> pieces(std::uint64_t held) const {
        const std::uint64_t size = whole() == 0 ? 1 : block() / whole();
        const std::uint64_t max = held / size * owners_of_slices(operation_.collective, ranks_);
        std::vector<CollectiveTask> tasks;
        for (std::uint64_t done = 0; done < whole(); done += max) {
            CollectiveTask task = blank();
            cut(task, {done, done + std::min(whole() - done, max)}, packet_bytes);
            tasks.push_back(task);
        }
        return tasks;
    }

    // Slices of some of the elements of all that the call counts. `at`: where large slices are cut, in bytes.
    void cut(CollectiveTask& task, Share some, std::uint64_t at) const {
        switch (operation_.collective) {
            case Collective::all_reduce:
                cut_for_all(task, some, at);
                break;
            case Collective::reduce:
                cut_for_reduce(task, some, at);
                break;
            case Collective::broadcast:
                cut_for_broadcast(task, some, at);
                break;
            case Collective::reduce_scatter:
                for (unsigned r = 0; r < ranks_; ++r)
                    task.slices[r] = {some.end - some.begin, r * whole() + some.begin, some.begin, all(),
                                      bit(r)};
                break;
            case Collective::all_gather:
                cut_for_all_gather(task, some);
                break;
            default:
                break;
        }
    }

    // A slice for each rank.
    void cut_for_all(CollectiveTask& task, Share some, std::uint64_t at) const {
        for (unsigned r = 0; r < ranks_; ++r)
            task.slices[r] = slice(task, some, {r, ranks_}, at, all(), all());
    }

    struct Nth {
        unsigned number;
        unsigned of;
    };
    static Slice slice(const CollectiveTask& task, Share some, Nth nth, std::uint64_t at,
                       std::uint16_t sources, std::uint16_t targets) {
        const Share share = share_of(some.end - some.begin, nth.number, nth.of, at / size_of(task.element));
        if (share.begin == share.end) return {};
        const std::uint64_t begin = some.begin + share.begin;
        return {share.end - share.begin, begin, begin, sources, targets};
    }

    CollectiveTask slices() const {
        CollectiveTask task = blank();
        cut(task, {0, whole()}, line_bytes);
        return task;
    }

    // One slice for all that goes the same way.
    CollectiveTask ring() const {
        CollectiveTask task = blank();
        switch (operation_.collective) {
            case Collective::all_reduce:
                task.slices[0] = {operation_.count, 0, 0, all(), all()};
                break;
            case Collective::reduce:
                task.slices[0] = {operation_.count, 0, 0, all(), bit(root_)};
                break;
            case Collective::broadcast:
                task.slices[root_] = {block(), 0, 0, bit(root_),
                                      static_cast<std::uint16_t>(all() & ~bit(root_))};
                if (at_root() && operation_.send != operation_.recv) task.local_bytes = block();
                break;
            default:
                return slices();
        }
        return task;
    }

    // The mirror of a broadcast: the root would receive almost twice as much if it reduced a slice itself. Of
    // two ranks it reads the other's buffer, which saves the way back.
    void cut_for_reduce(CollectiveTask& task, Share some, std::uint64_t at) const {
        for (unsigned r = 0; r < ranks_; ++r) {
            if (ranks_ <= 2 ? r != root_ : r == root_) continue;
            const Nth nth = ranks_ <= 2 ? Nth{0, 1} : Nth{without_root(r, root_), ranks_ - 1};
            task.slices[r] = slice(task, some, nth, at, all(), bit(root_));
        }
    }

    // Each of the others fetches its slice from the root and hands it on, so that the root sends every byte
    // once.
    void cut_for_broadcast(CollectiveTask& task, Share some, std::uint64_t at) const {
        const auto but_root = static_cast<std::uint16_t>(all() & ~bit(root_));
        for (unsigned r = 0; r < ranks_; ++r)
            if (r != root_)
                task.slices[r] =
                    slice(task, some, {without_root(r, root_), ranks_ - 1}, at, bit(root_), but_root);
        if (!at_root() || operation_.send == operation_.recv) return;
        task.local_from = task.local_to = some.begin;
        task.local_bytes = some.end - some.begin;
    }

    void cut_for_all_gather(CollectiveTask& task, Share some) const {
        const std::uint64_t bytes = some.end - some.begin;
        for (unsigned r = 0; r < ranks_; ++r)
            task.slices[r] = {bytes, some.begin, r * block() + some.begin, bit(r), all()};
        Slice& own = task.slices[me_];
        if (address(operation_.send) != address(operation_.recv) + me_ * block()) return;
        own.targets = static_cast<std::uint16_t>(own.targets & ~bit(me_));
        if (own.targets == 0) own = {};
    }

    std::vector<CollectiveTask> pairs() const {
        if (operation_.collective == Collective::send_recv) return rounds();
        CollectiveTask task = blank();
        const BlockLists& lists = operation_.blocks;
        if (operation_.collective == Collective::all_to_all_v && lists.on_device) {
            task.element = operation_.element;
            task.device_send_offsets = lists.send_offsets;
            task.device_send_counts = lists.send_counts;
            task.device_recv_offsets = lists.recv_offsets;
            task.device_recv_counts = lists.recv_counts;
            task.blocks = pair_blocks(std::uint64_t{1} << 47);
        } else {
            fill_blocks(task);
            set_pair_blocks(task);
        }
        return {task};
    }

    std::vector<CollectiveTask> copies() const {
        CollectiveTask task = blank();
        if (operation_.collective != Collective::broadcast || !cuts_broadcast_of_copies(block(), ranks_)) {
            fill_blocks(task);
            return {task};
        }
        CollectiveTask onward = task;
        onward.send = operation_.recv;
        for (unsigned r = 0; r < ranks_; ++r) {
            if (r == root_) continue;
            const Share share = share_of(block(), without_root(r, root_), ranks_ - 1, line_bytes);
            const Block part{share.begin, share.end - share.begin};
            if (at_root()) task.to[r] = part;
            if (r == me_) task.from[root_] = part;
            if (at_root() || r == me_) continue;
            onward.from[r] = part;
            const Share own = share_of(block(), without_root(me_, root_), ranks_ - 1, line_bytes);
            onward.to[r] = {own.begin, own.end - own.begin};
        }
        if (at_root()) task.to[me_] = task.from[me_] = {0, block()};
        skip_copy_onto_itself(task);
        return {task, onward};
    }

    void set_pair_blocks(CollectiveTask& task) const {
        std::uint64_t largest = 0;
        for (unsigned r = 0; r < ranks_; ++r)
            if (r != me_) largest = std::max({largest, task.to[r].bytes, task.from[r].bytes});
        task.blocks = pair_blocks(largest);
    }
    std::uint8_t pair_blocks(std::uint64_t bytes) const {
        return static_cast<std::uint8_t>(
            protocol::pair_blocks(bytes, ranks_, choice_.eager_max, choice_.pair_blocks_max));
    }

    // The k-th block to or from each rank goes with task k, on both of its ends, so that no rank is in a
    // later task than the one that waits for it needs.
    std::vector<CollectiveTask> rounds() const {
        std::vector<Round> rounds;
        unsigned sends[protocol::max_ranks] = {};
        unsigned receives[protocol::max_ranks] = {};
        for (const PairItem& item : operation_.pairs) {
            if (item.bytes == 0) continue;
            const unsigned round = (item.sends ? sends : receives)[item.peer]++;
            if (round == rounds.size()) rounds.emplace_back();
            (item.sends ? rounds[round].sends : rounds[round].receives)[item.peer] = &item;
        }
        std::vector<CollectiveTask> tasks;
        for (const Round& round : rounds) tasks.push_back(round_task(round));
        return tasks;
    }

    struct Round {
        const PairItem* sends[protocol::max_ranks] = {};
        const PairItem* receives[protocol::max_ranks] = {};
    };

    CollectiveTask round_task(const Round& round) const {
        CollectiveTask task = blank();
        task.send = lowest(round.sends);
        task.recv = lowest(round.receives);
        for (unsigned r = 0; r < ranks_; ++r) {
            task.to[r] = block_of(round.sends[r], task.send);
            task.from[r] = block_of(round.receives[r], task.recv);
        }
        skip_copy_onto_itself(task);
        set_pair_blocks(task);
        return task;
    }

    static void* lowest(const PairItem* const (&items)[protocol::max_ranks]) {
        void* found = nullptr;
        for (const PairItem* item : items)
            if (item != nullptr && (found == nullptr || address(item->data) < address(found)))
                found = item->data;
        return found;
    }

    static Block block_of(const PairItem* item, const void* base) {
        return item == nullptr ? Block{} : Block{address(item->data) - address(base), item->bytes};
    }

    const Operation& operation_;
    const Choice& choice_;
    const unsigned me_;
    const unsigned ranks_;
    const unsigned root_;
};

}  // namespace

bool carries(Shape shape, Collective collective) {
    if (shape == Shape::coalesced)
        return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
               collective == Collective::all_gather || collective == Collective::all_to_all;
    switch (collective) {
        case Collective::all_reduce:
            return shape != Shape::pairs && shape != Shape::copies;
        case Collective::reduce:
        case Collective::reduce_scatter:
            return shape == Shape::packets || shape == Shape::lamport || shape == Shape::lines ||
                   shape == Shape::slices || shape == Shape::pushed_slices || shape == Shape::ring;
        case Collective::broadcast:
        case Collective::all_gather:
            return shape == Shape::packets || shape == Shape::lines || shape == Shape::slices ||
                   shape == Shape::copies || shape == Shape::ring;
        case Collective::all_to_all:
        case Collective::gather:
        case Collective::scatter:
            return shape == Shape::packets || shape == Shape::pairs || shape == Shape::copies;
        case Collective::all_to_all_v:
            return shape == Shape::pairs || shape == Shape::copies;
        case Collective::send_recv:
            return shape == Shape::pairs;
        case Collective::barrier:
            return shape == Shape::packets || shape == Shape::copies;
    }
    return false;
}

unsigned owners_of_slices(Collective collective, unsigned ranks) {
    if (collective == Collective::all_reduce) return ranks;
    if (collective == Collective::reduce || collective == Collective::broadcast)
        return ranks <= 2 ? 1 : ranks - 1;
    return 1;
}

bool cuts_broadcast_of_copies(std::uint64_t bytes, unsigned ranks) {
    return ranks > 2 && bytes >= min_cut_broadcast;
}

std::vector<protocol::CollectiveTask> tasks_of(const Operation& operation, const Choice& choice, int rank,
                                               int ranks) {
    return Maker(operation, choice, rank, ranks).make();
}

}  // namespace sidestep::collective
