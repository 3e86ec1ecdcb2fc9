// Every collective in every shape that carries it: the tasks of all ranks together do what the operation
// means, and touch nothing else.
#include "collective/tasks.hpp"

#include <algorithm>
#include <cstring>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/try.hpp"
#include "protocol/pair_blocks.hpp"
#include "tests/unit/collective/interpreter.hpp"

namespace sidestep::collective {
namespace {

using protocol::ArenaLayout;
using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Element;
using protocol::Shape;
using test::Bytes;
using test::Order;
using test::RankMemory;

constexpr std::uint64_t guard = 64;
constexpr Shape shapes[] = {Shape::packets, Shape::lamport, Shape::packets_two_phase,
                            Shape::lines,   Shape::slices,  Shape::pushed_slices,
                            Shape::pairs,   Shape::copies,  Shape::ring};
constexpr Order orders[] = {Order::ascending, Order::descending, Order::staged};
const std::vector<int> group_sizes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};

struct Case {
    Collective collective = Collective::all_reduce;
    Shape shape = Shape::packets;
    Element element = Element::u8;
    int ranks = 1;
    std::uint64_t count = 0;
    int root = 0;
    bool in_place = false;

    std::string words() const {
        return fmt::format("{} shape {} of {} {} on {} ranks, root {}, {}", to_string(collective),
                           static_cast<int>(shape), count, to_string(element), ranks, root,
                           in_place ? "in place" : "out of place");
    }
    std::uint64_t block() const { return count * size_of(element); }
};

// Blocks in the send and the receive buffer of a rank.
std::pair<int, int> buffers_of(const Case& one, int rank) {
    const bool root = rank == one.root;
    switch (one.collective) {
        case Collective::all_reduce:
            return {1, 1};
        case Collective::reduce:
            return {1, root ? 1 : 0};
        case Collective::broadcast:
            return {root ? 1 : 0, 1};
        case Collective::all_gather:
            return {1, one.ranks};
        case Collective::reduce_scatter:
            return {one.ranks, 1};
        case Collective::gather:
            return {1, root ? one.ranks : 0};
        case Collective::scatter:
            return {root ? one.ranks : 0, 1};
        case Collective::all_to_all:
            return {one.ranks, one.ranks};
        default:
            return {0, 0};
    }
}

// Where the smaller buffer lies in the larger one when they are used in place, in blocks.
int place_of(const Case& one, int rank) {
    switch (one.collective) {
        case Collective::all_gather:
        case Collective::reduce_scatter:
            return rank;
        case Collective::gather:
        case Collective::scatter:
            return one.root;
        default:
            return 0;
    }
}

RankMemory memory_of(const Case& one, int rank) {
    const auto [send, recv] = buffers_of(one, rank);
    RankMemory memory;
    memory.send_bytes = send * one.block();
    memory.recv_bytes = recv * one.block();
    memory.send_begin = memory.recv_begin = guard;
    if (one.in_place && send > 0 && recv > 0)
        (send < recv ? memory.send_begin : memory.recv_begin) += place_of(one, rank) * one.block();
    else
        memory.recv_begin = guard + memory.send_bytes + guard;
    const std::uint64_t end =
        std::max(memory.send_begin + memory.send_bytes, memory.recv_begin + memory.recv_bytes);
    memory.bytes.resize(end + guard);
    memory.writes.resize(memory.bytes.size());
    std::mt19937_64 random(static_cast<unsigned>(rank) * 77 + 5);
    for (std::size_t at = 0; at < memory.bytes.size(); at += sizeof(std::uint64_t)) {
        const std::uint64_t word = random();
        std::memcpy(&memory.bytes[at], &word, std::min(sizeof word, memory.bytes.size() - at));
    }
    return memory;
}

// What each rank has to receive, by the definition.
Bytes expected_of(const Case& one, const std::vector<Bytes>& sent, int rank) {
    const auto block_of = [&](const Bytes& bytes, int nth) {
        const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(nth * one.block());
        return Bytes(begin, begin + static_cast<std::ptrdiff_t>(one.block()));
    };
    const auto root = static_cast<std::size_t>(one.root);
    const bool at_root = rank == one.root;
    std::vector<Bytes> parts;
    Bytes joined;
    switch (one.collective) {
        case Collective::reduce:
            if (!at_root) return {};
            [[fallthrough]];
        case Collective::all_reduce:
            return test::combined(sent, size_of(one.element));
        case Collective::reduce_scatter:
            for (const Bytes& bytes : sent) parts.push_back(block_of(bytes, rank));
            return test::combined(parts, size_of(one.element));
        case Collective::broadcast:
            return sent[root];
        case Collective::scatter:
            return block_of(sent[root], rank);
        case Collective::gather:
            if (!at_root) return {};
            [[fallthrough]];
        case Collective::all_gather:
            for (const Bytes& bytes : sent) joined.insert(joined.end(), bytes.begin(), bytes.end());
            return joined;
        case Collective::all_to_all:
            for (const Bytes& bytes : sent) {
                const Bytes part = block_of(bytes, rank);
                joined.insert(joined.end(), part.begin(), part.end());
            }
            return joined;
        default:
            return {};
    }
}

Operation operation_of(const Case& one, RankMemory& memory) {
    Operation operation;
    operation.collective = one.collective;
    // What a rank does not look at is poison: null.
    operation.send = memory.send_bytes > 0 || one.count == 0 ? memory.send() : nullptr;
    operation.recv = memory.recv_bytes > 0 || one.count == 0 ? memory.recv() : nullptr;
    operation.count = one.count;
    operation.element = one.element;
    operation.combine = combines(one.collective) ? Combine::sum : Combine::none;
    operation.root = one.root;
    return operation;
}

Choice choice_of(Shape shape) {
    Choice choice;
    choice.shape = shape;
    choice.blocks = 4;
    return choice;
}

// Every byte of the receive buffer once, but for what is there already when the operation begins; nothing
// else ever.
void expect_writes(const Case& one, const RankMemory& memory, int rank) {
    Bytes wanted(memory.bytes.size());
    const auto set = [&wanted](std::uint64_t begin, std::uint64_t bytes, std::uint8_t times) {
        std::fill_n(wanted.begin() + static_cast<std::ptrdiff_t>(begin), bytes, times);
    };
    set(memory.recv_begin, memory.recv_bytes, 1);
    if (one.in_place && (!combines(one.collective) || one.ranks == 1)) {
        const bool own_block_alone = one.collective == Collective::all_to_all;
        const std::uint64_t begin = own_block_alone ? static_cast<std::uint64_t>(rank) * one.block() : 0;
        set(memory.send_begin + begin, own_block_alone ? one.block() : memory.send_bytes, 0);
    }
    if (memory.writes == wanted) return;
    const auto wrong = std::mismatch(wanted.begin(), wanted.end(), memory.writes.begin());
    FAIL() << one.words() << ": rank " << rank << " byte " << wrong.first - wanted.begin() << " written "
           << int{*wrong.second} << " times";
}

void expect_right(const Case& one, Order order) {
    std::vector<RankMemory> ranks;
    std::vector<Bytes> sent;
    for (int rank = 0; rank < one.ranks; ++rank) {
        ranks.push_back(memory_of(one, rank));
        sent.push_back(ranks.back().sent());
    }
    std::vector<std::vector<CollectiveTask>> tasks;
    for (int rank = 0; rank < one.ranks; ++rank) {
        const Operation operation = operation_of(one, ranks[static_cast<std::size_t>(rank)]);
        const auto checked = check(operation, rank, one.ranks);
        ASSERT_TRUE(checked.ok()) << one.words() << checked.error().to_string();
        tasks.push_back(tasks_of(operation, choice_of(one.shape), rank, one.ranks));
        EXPECT_EQ(tasks.back().size(), tasks.front().size()) << one.words();
    }
    if (one.count > 0 && one.ranks > 1) {
        ASSERT_FALSE(tasks[0].empty()) << one.words();
    }
    test::run(ranks, tasks, order);
    for (int rank = 0; rank < one.ranks; ++rank) {
        const RankMemory& memory = ranks[static_cast<std::size_t>(rank)];
        ASSERT_TRUE(memory.received() == expected_of(one, sent, rank)) << one.words() << " at rank " << rank;
        expect_writes(one, memory, rank);
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << one.words();
}

std::vector<int> roots_of(Collective collective, int ranks) {
    if (!has_root(collective)) return {0};
    std::vector<int> roots = {0};
    if (ranks > 2) roots.push_back(ranks / 2);
    if (ranks > 1) roots.push_back(ranks - 1);
    return roots;
}

constexpr std::uint64_t small_counts[] = {0, 1, 2, 3, 5, 7, 13, 17, 31, 64, 100, 1000};

void small_ones(Case one) {
    for (const std::uint64_t count : small_counts)
        for (const int root : roots_of(one.collective, one.ranks))
            for (const bool in_place : {false, true})
                for (const Order order : orders) {
                    one.count = count;
                    one.root = root;
                    one.in_place = in_place;
                    expect_right(one, order);
                    if (testing::Test::HasFailure()) return;
                }
}

// Of two and a half tasks: they differ in where they are cut, not in what one does.
void cut_one(Case one) {
    const ArenaLayout layout{static_cast<unsigned>(one.ranks)};
    const bool one_shot = one.shape == Shape::packets || one.shape == Shape::lamport;
    const std::uint64_t held = one.shape == Shape::lines     ? layout.lines_payload()
                               : one.shape == Shape::lamport ? layout.lamport_payload()
                                                             : layout.packet_payload();
    const std::uint64_t whole = one_shot ? held : held * owners_of_slices(one.collective, layout.ranks);
    one.count = (whole * 2 + whole / 2) / size_of(one.element) + 3;
    one.root = one.ranks - 1;
    for (const bool in_place : {false, true}) {
        one.in_place = in_place;
        expect_right(one, Order::ascending);
    }
}

class EveryCollective : public testing::TestWithParam<Collective> {};

TEST_P(EveryCollective, DoesWhatItMeansInEveryShape) {
    for (const int ranks : group_sizes)
        for (const Element element : {Element::u8, Element::bf16, Element::f32, Element::i64})
            for (const Shape shape : shapes) {
                // What is not combined is cut by bytes, and large groups as small ones.
                if (element != Element::f32 && (ranks > 5 || !combines(GetParam()))) continue;
                if (!carries(shape, GetParam())) continue;
                const Case one{GetParam(), shape, element, ranks};
                small_ones(one);
                const bool packets =
                    shape == Shape::packets || shape == Shape::lamport || shape == Shape::packets_two_phase;
                // Lines are cut as two-phase packets are, and take many more bytes for it.
                const bool lines = shape == Shape::lines && ranks == 3;
                if ((packets || lines) && element == Element::f32 && ranks <= 5) cut_one(one);
                if (HasFailure()) return;
            }
}

INSTANTIATE_TEST_SUITE_P(Tasks, EveryCollective,
                         testing::Values(Collective::all_reduce, Collective::broadcast, Collective::reduce,
                                         Collective::all_gather, Collective::reduce_scatter,
                                         Collective::all_to_all, Collective::gather, Collective::scatter),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

Operation all_reduce_of(std::uint64_t count, Element element) {
    static char send, recv;
    Operation operation;
    operation.collective = Collective::all_reduce;
    operation.send = &send;
    operation.recv = &recv;
    operation.count = count;
    operation.element = element;
    operation.combine = Combine::sum;
    return operation;
}

TEST(Tasks, SlicesCoverCountsBeyondFourGigabytesWithoutAGap) {
    for (const int ranks : group_sizes)
        for (const std::uint64_t count : {(std::uint64_t{1} << 32) + 5, (std::uint64_t{1} << 40) - 1}) {
            const auto tasks =
                tasks_of(all_reduce_of(count, Element::f32), choice_of(Shape::slices), 0, ranks);
            ASSERT_EQ(tasks.size(), 1u);
            std::uint64_t next = 0, min = count, max = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                const protocol::Slice& slice = tasks[0].slices[rank];
                EXPECT_EQ(slice.source_offset, next);
                EXPECT_EQ(slice.target_offset, next);
                EXPECT_EQ(slice.source_offset * 4 % 128, 0u) << "cut in the middle of a line of memory";
                next += slice.count;
                min = std::min(min, slice.count);
                max = std::max(max, slice.count);
            }
            EXPECT_EQ(next, count);
            EXPECT_LE(max - min, 64u) << "even but for a line and the rest";
        }
}

TEST(Tasks, SlicesOfPacketsAreCutAtWholePackets) {
    const auto tasks =
        tasks_of(all_reduce_of(1001, Element::bf16), choice_of(Shape::packets_two_phase), 2, 4);
    ASSERT_EQ(tasks.size(), 1u);
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(tasks[0].slices[rank].source_offset * 2 % 16, 0u);
}

TEST(Tasks, ShapesThatDoNotCarryACollectiveGiveNone) {
    const Operation operation = all_reduce_of(8, Element::f32);
    EXPECT_TRUE(tasks_of(operation, choice_of(Shape::pairs), 0, 2).empty());
    EXPECT_FALSE(tasks_of(operation, choice_of(Shape::packets), 0, 2).empty());
}

TEST(Tasks, TheOnlyRankInPlaceHasNothingToDoButForAScaledSum) {
    Operation operation = all_reduce_of(8, Element::f32);
    EXPECT_EQ(tasks_of(operation, choice_of(Shape::slices), 0, 1).size(), 1u);
    operation.recv = const_cast<void*>(operation.send);
    EXPECT_TRUE(tasks_of(operation, choice_of(Shape::slices), 0, 1).empty());
    operation.combine = Combine::scaled_sum;
    EXPECT_EQ(tasks_of(operation, choice_of(Shape::slices), 0, 1).size(), 1u);
}

TEST(Tasks, CarryTheScaleOfScaledSumsAlone) {
    Operation operation = all_reduce_of(8, Element::f32);
    operation.scale = 77;
    operation.device_scale = &operation;
    EXPECT_EQ(tasks_of(operation, choice_of(Shape::packets), 0, 2)[0].scale, 0u);
    operation.combine = Combine::scaled_sum;
    const auto tasks = tasks_of(operation, choice_of(Shape::packets), 0, 2);
    EXPECT_EQ(tasks[0].scale, 77u);
    EXPECT_EQ(tasks[0].device_scale, &operation);
    EXPECT_EQ(tasks[0].element, Element::f32);
    EXPECT_EQ(tasks[0].combine, Combine::scaled_sum);
}

TEST(Tasks, ThreadBlocksAreThoseOfTheChoiceOrFollowFromThePairs) {
    Operation operation = all_reduce_of(100'000, Element::f32);
    EXPECT_EQ(tasks_of(operation, choice_of(Shape::slices), 0, 4)[0].blocks, 4);
    operation.collective = Collective::all_to_all;
    operation.combine = Combine::none;
    EXPECT_EQ(tasks_of(operation, choice_of(Shape::pairs), 0, 4)[0].blocks,
              protocol::pair_blocks(400'000, 4));
    operation.collective = Collective::gather;
    EXPECT_EQ(tasks_of(operation, choice_of(Shape::pairs), 3, 4)[0].blocks,
              protocol::pair_blocks(400'000, 4));
}

TEST(Tasks, ABarrierIsPacketsWithoutBytes) {
    Operation operation;
    const auto tasks = tasks_of(operation, choice_of(Shape::packets), 1, 4);
    ASSERT_EQ(tasks.size(), 1u);
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(tasks[0].to[rank].bytes + tasks[0].from[rank].bytes, 0u);
    EXPECT_NE(tasks[0].signature, 0u);
}

// By copies a large one is handed on too, in a second task.
TEST(Tasks, ALargeBroadcastByCopiesHasTwoTasks) {
    for (const int ranks : {2, 3, 5, 16})
        for (const std::uint64_t bytes :
             {(std::uint64_t{1} << 20) - 1, std::uint64_t{1} << 20, (std::uint64_t{1} << 20) + 77})
            for (const bool in_place : {false, true}) {
                const Case one{
                    Collective::broadcast, Shape::copies, Element::u8, ranks, bytes, ranks - 1, in_place};
                for (const Order order : orders) expect_right(one, order);
                Operation operation = all_reduce_of(bytes, Element::u8);
                operation.collective = Collective::broadcast;
                operation.combine = Combine::none;
                const auto tasks = tasks_of(operation, choice_of(Shape::copies), 0, ranks);
                const bool cut = ranks > 2 && bytes >= 1 << 20;
                ASSERT_EQ(tasks.size(), cut ? 2u : 1u);
                std::uint64_t out = 0;
                for (int rank = 1; rank < ranks; ++rank) out += tasks[0].to[rank].bytes;
                EXPECT_EQ(out, cut ? bytes : bytes * static_cast<std::uint64_t>(ranks - 1));
                for (int rank = 0; rank < ranks && cut; ++rank) EXPECT_EQ(tasks[1].to[rank].bytes, 0u);
            }
}

TEST(Tasks, TheRootOfABroadcastSendsEveryByteOnceAndReceivesNone) {
    for (int ranks = 2; ranks <= 16; ++ranks) {
        Operation operation = all_reduce_of(100'000, Element::f32);
        operation.collective = Collective::broadcast;
        operation.combine = Combine::none;
        operation.root = 1;
        const CollectiveTask task = tasks_of(operation, choice_of(Shape::slices), 1, ranks)[0];
        std::uint64_t out = 0;
        for (int rank = 0; rank < ranks; ++rank) {
            out += task.slices[rank].count;
            EXPECT_EQ(task.slices[rank].targets & 2, 0);
            if (task.slices[rank].count > 0) {
                EXPECT_EQ(task.slices[rank].sources, 2);
            }
        }
        EXPECT_EQ(out, 400'000u);
        EXPECT_EQ(task.local_bytes, 400'000u);
    }
}

}  // namespace
}  // namespace sidestep::collective
