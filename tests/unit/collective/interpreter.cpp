#include "tests/unit/collective/interpreter.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include <gtest/gtest.h>

namespace sidestep::collective::test {

using protocol::ArenaLayout;
using protocol::Block;
using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Shape;
using protocol::Slice;

Bytes RankMemory::part(std::uint64_t begin, std::uint64_t count) const {
    return {bytes.begin() + static_cast<std::ptrdiff_t>(begin),
            bytes.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

namespace {

template <typename Integer>
void fold(Bytes& into, const Bytes& next) {
    std::uint8_t* const sums = into.data();
    const std::uint8_t* const added = next.data();
    for (std::size_t at = 0, end = into.size(); at + sizeof(Integer) <= end; at += sizeof(Integer)) {
        Integer a, b;
        std::memcpy(&a, sums + at, sizeof a);
        std::memcpy(&b, added + at, sizeof b);
        const auto result = static_cast<Integer>(static_cast<Integer>(a * 31u) + b);
        std::memcpy(sums + at, &result, sizeof result);
    }
}

// One task of every rank.
class Step {
public:
    Step(std::vector<RankMemory>& ranks, std::vector<const CollectiveTask*> tasks, Order order)
        : ranks_(ranks), tasks_(std::move(tasks)), order_(order) {
        sequence_.resize(ranks.size());
        std::iota(sequence_.begin(), sequence_.end(), 0u);
        if (order == Order::descending) std::reverse(sequence_.begin(), sequence_.end());
    }

    void run() {
        const CollectiveTask& first =
            **std::find_if(tasks_.begin(), tasks_.end(), [](auto* one) { return one; });
        for (const CollectiveTask* task : tasks_) {
            if (task == nullptr) continue;
            EXPECT_EQ(task->shape, first.shape);
            EXPECT_EQ(task->signature, first.signature);
            EXPECT_EQ(task->combine, first.combine);
            EXPECT_GE(task->blocks, 1);
            EXPECT_LE(task->blocks, protocol::max_blocks);
            if (first.shape != Shape::pairs) {
                EXPECT_EQ(task->blocks, first.blocks);
            }
        }
        if (first.shape == Shape::pairs) return pairs();
        for (const CollectiveTask* task : tasks_) ASSERT_NE(task, nullptr) << "every rank takes part";
        if (first.shape == Shape::packets || first.shape == Shape::lamport || first.shape == Shape::copies)
            return packets();
        for (unsigned r : sequence_) copy_locally(r);
        check_tables();
        const bool through_arenas = first.shape == Shape::packets_two_phase || first.shape == Shape::lines ||
                                    first.shape == Shape::pushed_slices || first.shape == Shape::ring;
        if (through_arenas || order_ == Order::staged) return staged();
        for (unsigned r : sequence_) work_on_slice(r);
    }

private:
    unsigned count() const { return static_cast<unsigned>(ranks_.size()); }
    static unsigned size(const CollectiveTask& task) { return size_of(task.element); }

    Bytes read(unsigned rank, const void* base, std::uint64_t offset, std::uint64_t bytes) {
        RankMemory& memory = ranks_[rank];
        const std::uint64_t at = reinterpret_cast<std::uintptr_t>(base) + offset -
                                 reinterpret_cast<std::uintptr_t>(memory.bytes.data());
        if (bytes == 0) return {};
        const auto within = [&](std::uint64_t begin, std::uint64_t size) {
            return at >= begin && at + bytes <= begin + size;
        };
        // Copies may hand on what the task before has brought.
        const bool hands_on = tasks_[rank] != nullptr && tasks_[rank]->shape == Shape::copies &&
                              within(memory.recv_begin, memory.recv_bytes);
        const bool inside = within(memory.send_begin, memory.send_bytes) || hands_on;
        EXPECT_TRUE(inside) << "rank " << rank << " is read outside of its send buffer";
        return inside ? memory.part(at, bytes) : Bytes(bytes);
    }

    void write(unsigned rank, void* base, std::uint64_t offset, const Bytes& data) {
        RankMemory& memory = ranks_[rank];
        const std::uint64_t at = reinterpret_cast<std::uintptr_t>(base) + offset -
                                 reinterpret_cast<std::uintptr_t>(memory.bytes.data());
        if (data.empty()) return;
        ASSERT_GE(at, memory.recv_begin) << "rank " << rank << " is written outside of its receive buffer";
        ASSERT_LE(at + data.size(), memory.recv_begin + memory.recv_bytes)
            << "rank " << rank << " is written outside of its receive buffer";
        std::copy(data.begin(), data.end(), memory.bytes.begin() + static_cast<std::ptrdiff_t>(at));
        std::for_each_n(memory.writes.data() + at, data.size(), [](std::uint8_t& times) { ++times; });
    }

    void packets() {
        std::vector<std::vector<Bytes>> lanes(count(), std::vector<Bytes>(count()));
        for (unsigned a = 0; a < count(); ++a)
            for (unsigned b = 0; b < count(); ++b) {
                const Block& block = tasks_[a]->to[b];
                if (a != b && tasks_[a]->shape == Shape::packets) {
                    EXPECT_LE(block.bytes, ArenaLayout{count()}.packet_payload());
                }
                if (a != b && tasks_[a]->shape == Shape::lamport) {
                    EXPECT_LE(block.bytes, ArenaLayout{count()}.lamport_payload());
                }
                lanes[b][a] = read(a, tasks_[a]->send, block.offset, block.bytes);
            }
        for (unsigned b = 0; b < count(); ++b) {
            const CollectiveTask& task = *tasks_[b];
            for (unsigned a = 0; a < count(); ++a) EXPECT_EQ(lanes[b][a].size(), task.from[a].bytes);
            if (task.combine == Combine::none)
                for (unsigned a = 0; a < count(); ++a) write(b, task.recv, task.from[a].offset, lanes[b][a]);
            else
                write(b, task.recv, task.from[b].offset, combined(lanes[b], size(task)));
        }
    }

    void copy_locally(unsigned rank) {
        const CollectiveTask& task = *tasks_[rank];
        write(rank, task.recv, task.local_to, read(rank, task.send, task.local_from, task.local_bytes));
    }

    // The tables of all ranks are alike, but for what a rank says of itself in its own slice.
    void check_tables() {
        for (unsigned r = 0; r < count(); ++r)
            for (unsigned x = 0; x < count(); ++x) {
                const Slice& own = tasks_[r]->slices[r];
                const Slice& seen = tasks_[x]->slices[r];
                const bool only_itself = (seen.targets & ~(1u << r)) == 0 && own.count == 0;
                EXPECT_TRUE(seen.count == own.count || only_itself);
                EXPECT_TRUE(seen.source_offset == own.source_offset || only_itself);
                EXPECT_TRUE(seen.target_offset == own.target_offset || only_itself);
                EXPECT_EQ(seen.sources & ~(1u << r), own.sources & ~(1u << r));
                EXPECT_EQ(seen.targets & ~(1u << r), own.targets & ~(1u << r));
            }
    }

    // As with everything mapped: the owner reads and writes where the bytes are.
    void work_on_slice(unsigned rank) {
        const CollectiveTask& task = *tasks_[rank];
        const Slice& slice = task.slices[rank];
        if (slice.count == 0) return;
        std::vector<Bytes> sources;
        for (unsigned s = 0; s < count(); ++s)
            if (slice.sources >> s & 1)
                sources.push_back(
                    read(s, tasks_[s]->send, slice.source_offset * size(task), slice.count * size(task)));
        ASSERT_FALSE(sources.empty());
        if (task.combine == Combine::none) {
            ASSERT_EQ(sources.size(), 1u);
        }
        const Bytes result = combined(sources, size(task));
        for (unsigned t = 0; t < count(); ++t)
            if (slice.targets >> t & 1) write(t, tasks_[t]->recv, slice.target_offset * size(task), result);
    }

    // Each rank copies out and in by its own table; the owner combines by its own.
    void staged() {
        std::map<std::pair<unsigned, unsigned>, Bytes> out, in;  // (rank, slice)
        for (unsigned x = 0; x < count(); ++x)
            for (unsigned r = 0; r < count(); ++r) {
                const Slice& slice = tasks_[x]->slices[r];
                const std::uint64_t bytes = slice.count * size(*tasks_[x]);
                if (tasks_[x]->shape == Shape::packets_two_phase) {
                    EXPECT_LE(bytes, ArenaLayout{count()}.packet_payload());
                }
                if (tasks_[x]->shape == Shape::lines) {
                    EXPECT_LE(bytes, ArenaLayout{count()}.lines_payload());
                }
                if (slice.count > 0 && (slice.sources >> x & 1))
                    out[{x, r}] = read(x, tasks_[x]->send, slice.source_offset * size(*tasks_[x]), bytes);
            }
        for (unsigned r = 0; r < count(); ++r) {
            const Slice& slice = tasks_[r]->slices[r];
            if (slice.count == 0) continue;
            std::vector<Bytes> sources;
            for (unsigned s = 0; s < count(); ++s)
                if (slice.sources >> s & 1) sources.push_back(out[{s, r}]);
            const Bytes result = combined(sources, size(*tasks_[r]));
            for (unsigned t = 0; t < count(); ++t)
                if (slice.targets >> t & 1) in[{t, r}] = result;
        }
        for (unsigned x = 0; x < count(); ++x)
            for (unsigned r = 0; r < count(); ++r) {
                const Slice& slice = tasks_[x]->slices[r];
                const bool wanted = slice.count > 0 && (slice.targets >> x & 1);
                EXPECT_EQ(wanted, in.contains({x, r})) << "rank " << x << ", slice " << r;
                if (wanted) write(x, tasks_[x]->recv, slice.target_offset * size(*tasks_[x]), in[{x, r}]);
            }
    }

    struct Pair {
        Block to, from;
    };
    static Block listed(const std::uint64_t* offsets, const std::uint64_t* counts, unsigned rank,
                        unsigned size) {
        return {offsets[rank] * size, counts[rank] * size};
    }
    Block to(unsigned a, unsigned b) const {
        const CollectiveTask* task = tasks_[a];
        if (task == nullptr) return {};
        if (task->device_send_counts == nullptr) return task->to[b];
        return listed(task->device_send_offsets, task->device_send_counts, b, size(*task));
    }
    Block from(unsigned b, unsigned a) const {
        const CollectiveTask* task = tasks_[b];
        if (task == nullptr) return {};
        if (task->device_recv_counts == nullptr) return task->from[a];
        return listed(task->device_recv_offsets, task->device_recv_counts, a, size(*task));
    }

    // The sender writes where the receiver says. In place the bytes go through the arena before they are
    // written.
    void pairs() {
        std::map<std::pair<unsigned, unsigned>, Bytes> ahead;
        for (unsigned a = 0; a < count(); ++a)
            if (tasks_[a] != nullptr && tasks_[a]->send == tasks_[a]->recv)
                for (unsigned b = 0; b < count(); ++b)
                    ahead[{a, b}] = read(a, tasks_[a]->send, to(a, b).offset, to(a, b).bytes);
        for (unsigned a : sequence_)
            for (unsigned b : sequence_) {
                EXPECT_EQ(to(a, b).bytes, from(b, a).bytes) << "from rank " << a << " to " << b;
                if (to(a, b).bytes == 0 || to(a, b).bytes != from(b, a).bytes) continue;
                const auto found = ahead.find({a, b});
                const Bytes data = found != ahead.end()
                                       ? found->second
                                       : read(a, tasks_[a]->send, to(a, b).offset, to(a, b).bytes);
                write(b, tasks_[b]->recv, from(b, a).offset, data);
            }
    }

    std::vector<RankMemory>& ranks_;
    std::vector<const CollectiveTask*> tasks_;
    Order order_;
    std::vector<unsigned> sequence_;
};

}  // namespace

Bytes combined(const std::vector<Bytes>& sources, unsigned size) {
    Bytes result = sources.front();
    for (std::size_t s = 1; s < sources.size(); ++s) {
        EXPECT_EQ(sources[s].size(), result.size());
        if (sources[s].size() != result.size()) return result;
        switch (size) {
            case 1:
                fold<std::uint8_t>(result, sources[s]);
                break;
            case 2:
                fold<std::uint16_t>(result, sources[s]);
                break;
            case 4:
                fold<std::uint32_t>(result, sources[s]);
                break;
            default:
                fold<std::uint64_t>(result, sources[s]);
                break;
        }
    }
    return result;
}

void run(std::vector<RankMemory>& ranks, const std::vector<std::vector<CollectiveTask>>& tasks, Order order) {
    std::size_t rounds = 0;
    for (const auto& own : tasks) rounds = std::max(rounds, own.size());
    for (std::size_t k = 0; k < rounds; ++k) {
        std::vector<const CollectiveTask*> step;
        for (const auto& own : tasks) step.push_back(k < own.size() ? &own[k] : nullptr);
        Step(ranks, std::move(step), order).run();
    }
}

}  // namespace sidestep::collective::test
