// Blocks from rank to rank: all_to_all_v with lists of any kind, and groups of sends and receives.
#include "collective/tasks.hpp"

#include <algorithm>
#include <deque>
#include <random>

#include <gtest/gtest.h>

#include "protocol/pair_blocks.hpp"
#include "tests/unit/collective/choosing.hpp"
#include "tests/unit/collective/interpreter.hpp"

namespace sidestep::collective {
namespace {

using protocol::CollectiveTask;
using protocol::Element;
using protocol::Shape;
using test::Bytes;
using test::Order;
using test::RankMemory;

constexpr std::uint64_t guard = 64;

Choice pairs() {
    Choice choice;
    choice.shape = Shape::pairs;
    return choice;
}

RankMemory memory_of(std::uint64_t send, std::uint64_t recv, unsigned seed) {
    RankMemory memory;
    memory.send_begin = guard;
    memory.send_bytes = send;
    memory.recv_begin = guard + send + guard;
    memory.recv_bytes = recv;
    memory.bytes.resize(memory.recv_begin + recv + guard);
    memory.writes.resize(memory.bytes.size());
    std::minstd_rand random(seed + 1);
    for (std::uint8_t& byte : memory.bytes) byte = static_cast<std::uint8_t>(random() >> 7);
    return memory;
}

// The four lists of one rank.
struct BlockLists {
    std::vector<std::uint64_t> send_counts, send_offsets, recv_counts, recv_offsets;
    std::uint64_t sent = 0, received = 0;
};

// Blocks of 0 to 2000 elements, with gaps between them; those to receive in the reverse order of ranks.
std::vector<BlockLists> lists_of(unsigned ranks, unsigned seed) {
    std::minstd_rand random(seed + 1);
    std::vector<std::vector<std::uint64_t>> counts(ranks, std::vector<std::uint64_t>(ranks));
    for (auto& row : counts)
        for (std::uint64_t& count : row) count = random() % 3 == 0 ? 0 : random() % 2000;
    std::vector<BlockLists> all(ranks);
    for (unsigned a = 0; a < ranks; ++a) {
        BlockLists& lists = all[a];
        lists.recv_offsets.resize(ranks);
        for (unsigned b = 0; b < ranks; ++b) {
            lists.send_counts.push_back(counts[a][b]);
            lists.recv_counts.push_back(counts[b][a]);
            lists.send_offsets.push_back(lists.sent + random() % 3);
            lists.sent = lists.send_offsets.back() + counts[a][b];
        }
        for (unsigned b = ranks; b-- > 0;) {
            lists.recv_offsets[b] = lists.received + random() % 3;
            lists.received = lists.recv_offsets[b] + counts[b][a];
        }
    }
    return all;
}

void expect_blocks(const std::vector<BlockLists>& lists, const std::vector<RankMemory>& ranks,
                   const std::vector<Bytes>& sent, unsigned size) {
    const auto block = [size](const Bytes& bytes, std::uint64_t offset, std::uint64_t count) {
        const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(offset * size);
        return Bytes(begin, begin + static_cast<std::ptrdiff_t>(count * size));
    };
    for (std::size_t b = 0; b < ranks.size(); ++b) {
        const Bytes received = ranks[b].received();
        std::uint64_t bytes = 0;
        for (std::size_t a = 0; a < ranks.size(); ++a) {
            bytes += lists[b].recv_counts[a] * size;
            ASSERT_TRUE(block(received, lists[b].recv_offsets[a], lists[b].recv_counts[a]) ==
                        block(sent[a], lists[a].send_offsets[b], lists[a].send_counts[b]))
                << "from rank " << a << " to " << b;
        }
        // No byte twice, none in a gap.
        ASSERT_LE(*std::max_element(ranks[b].writes.begin(), ranks[b].writes.end()), 1);
        ASSERT_EQ(static_cast<std::uint64_t>(std::count(ranks[b].writes.begin(), ranks[b].writes.end(), 1)),
                  bytes);
    }
}

void run_lists(unsigned ranks_count, Element element, bool on_device, unsigned seed, Order order) {
    const std::vector<BlockLists> lists = lists_of(ranks_count, seed);
    std::vector<RankMemory> ranks;
    std::vector<Bytes> sent;
    for (unsigned r = 0; r < ranks_count; ++r) {
        ranks.push_back(memory_of(lists[r].sent * size_of(element), lists[r].received * size_of(element), r));
        sent.push_back(ranks.back().sent());
    }
    std::vector<std::vector<CollectiveTask>> tasks;
    for (unsigned r = 0; r < ranks_count; ++r) {
        Operation operation;
        operation.collective = Collective::all_to_all_v;
        operation.send = ranks[r].send();
        operation.recv = ranks[r].recv();
        operation.element = element;
        operation.blocks = {lists[r].send_counts.data(), lists[r].send_offsets.data(),
                            lists[r].recv_counts.data(), lists[r].recv_offsets.data(), on_device};
        const auto checked = check(operation, static_cast<int>(r), static_cast<int>(ranks_count));
        ASSERT_TRUE(checked.ok()) << checked.error().to_string();
        tasks.push_back(tasks_of(operation, pairs(), static_cast<int>(r), static_cast<int>(ranks_count)));
        ASSERT_EQ(tasks.back().size(), 1u);
        EXPECT_EQ(tasks.back()[0].device_send_counts != nullptr, on_device);
    }
    test::run(ranks, tasks, order);
    expect_blocks(lists, ranks, sent, size_of(element));
}

TEST(AllToAllV, MovesBlocksOfAnySizes) {
    for (const unsigned ranks : {1u, 2u, 3u, 4u, 5u, 8u, 16u})
        for (const Element element : {Element::u8, Element::bf16, Element::f64})
            for (const bool on_device : {false, true})
                for (unsigned seed = 0; seed < 5; ++seed)
                    for (const Order order : {Order::ascending, Order::descending}) {
                        run_lists(ranks, element, on_device, seed, order);
                        ASSERT_FALSE(HasFailure()) << ranks << " ranks, seed " << seed;
                    }
}

// A message from one rank to another.
struct Message {
    unsigned from, to;
    std::uint64_t bytes;
};

// Every rank gives its own sends and receives, in an order of its own; those of one pair stay in order.
void run_messages(unsigned count, const std::vector<Message>& messages, unsigned seed, Order order) {
    std::vector<std::uint64_t> send(count), recv(count);
    for (const Message& message : messages) {
        send[message.from] += message.bytes;
        recv[message.to] += message.bytes;
    }
    std::vector<RankMemory> ranks;
    for (unsigned r = 0; r < count; ++r) ranks.push_back(memory_of(send[r], recv[r], r));
    std::vector<std::vector<PairItem>> calls(count);
    std::vector<Bytes> expected(count);
    std::fill(send.begin(), send.end(), 0);
    for (const Message& message : messages) {
        const Bytes data = ranks[message.from].part(guard + send[message.from], message.bytes);
        calls[message.from].push_back({true, static_cast<int>(message.to),
                                       ranks[message.from].send() + send[message.from], message.bytes});
        calls[message.to].push_back({false, static_cast<int>(message.from),
                                     ranks[message.to].recv() + expected[message.to].size(), message.bytes});
        send[message.from] += message.bytes;
        expected[message.to].insert(expected[message.to].end(), data.begin(), data.end());
    }
    std::vector<std::vector<CollectiveTask>> tasks;
    for (unsigned r = 0; r < count; ++r) {
        // By peer: what two ranks share stays in order, what others do in between does not matter.
        std::stable_sort(calls[r].begin(), calls[r].end(), [&](const PairItem& a, const PairItem& b) {
            const auto key = [&](const PairItem& item) {
                return (static_cast<unsigned>(item.peer) * 7 + seed + r + (item.sends ? 3 : 0)) % 5;
            };
            return key(a) < key(b);
        });
        Operation operation;
        operation.collective = Collective::send_recv;
        operation.pairs = calls[r];
        const auto checked = check(operation, static_cast<int>(r), static_cast<int>(count));
        ASSERT_TRUE(checked.ok()) << checked.error().to_string();
        tasks.push_back(tasks_of(operation, pairs(), static_cast<int>(r), static_cast<int>(count)));
    }
    test::run(ranks, tasks, order);
    for (unsigned r = 0; r < count; ++r) {
        ASSERT_TRUE(ranks[r].received() == expected[r]) << "rank " << r << ", seed " << seed;
        for (std::uint64_t at = 0; at < ranks[r].bytes.size(); ++at) {
            const bool wanted = at >= ranks[r].recv_begin && at < ranks[r].recv_begin + ranks[r].recv_bytes;
            ASSERT_EQ(ranks[r].writes[at], wanted ? 1 : 0);
        }
    }
}

TEST(SendRecv, GroupsOfAnyMessagesArriveInOrder) {
    for (unsigned seed = 0; seed < 300; ++seed) {
        std::minstd_rand random(seed + 1);
        const unsigned ranks = 1 + random() % 8;
        std::vector<Message> messages(random() % 30);
        for (Message& message : messages)
            message = {static_cast<unsigned>(random() % ranks), static_cast<unsigned>(random() % ranks),
                       random() % 4 == 0 ? 0 : random() % 5000};
        run_messages(ranks, messages, seed, seed % 2 == 0 ? Order::ascending : Order::descending);
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
}

TEST(SendRecv, OneBlockForEachRankIsOneTask) {
    std::deque<std::uint8_t> bytes(64);
    Operation operation;
    operation.collective = Collective::send_recv;
    for (int peer = 0; peer < 4; ++peer) {
        operation.pairs.push_back({true, peer, &bytes[static_cast<std::size_t>(peer)], 1});
        operation.pairs.push_back({false, peer, &bytes[static_cast<std::size_t>(peer) + 32], 1});
    }
    EXPECT_EQ(tasks_of(operation, pairs(), 2, 4).size(), 1u);
    operation.pairs.push_back({true, 3, &bytes[60], 1});
    const auto tasks = tasks_of(operation, pairs(), 2, 4);
    ASSERT_EQ(tasks.size(), 2u);
    EXPECT_EQ(tasks[1].to[3].bytes, 1u);
    EXPECT_EQ(tasks[1].to[0].bytes, 0u);
}

// Thread blocks of all pairs run at a time, in two groups, and the arena has lines for so many.
TEST(PairBlocks, FollowTheBytesUpToWhatRunsAtATime) {
    for (unsigned ranks = 2; ranks <= protocol::max_ranks; ++ranks) {
        EXPECT_EQ(protocol::pair_blocks(1, ranks), 1u);
        const std::uint64_t eager = protocol::ArenaLayout{ranks}.eager_payload();
        EXPECT_EQ(protocol::pair_blocks(eager, ranks), eager / protocol::eager_share);
        EXPECT_LE(eager / protocol::eager_share * (ranks - 1), 64u)
            << "of 132 multiprocessors, for two groups";
        EXPECT_EQ(protocol::pair_blocks(eager + 1, ranks), eager / protocol::eager_share);
        EXPECT_EQ(protocol::pair_blocks(5000, ranks, 1000), 2u);
        const unsigned max = protocol::pair_blocks(std::uint64_t{1} << 47, ranks);
        EXPECT_LE(max, protocol::max_blocks);
        EXPECT_LE(max * (ranks - 1), 128u);
        EXPECT_GE(max, 8u);
    }
    EXPECT_EQ(protocol::pair_blocks(std::uint64_t{1} << 47, 2), 64u);
    EXPECT_EQ(protocol::pair_blocks(std::uint64_t{1} << 47, 4), 42u);
}

// Each pair meets in one round, and both of them in the same.
TEST(PairBlocks, RoundsBringEachPairTogetherOnce) {
    for (unsigned ranks = 1; ranks <= protocol::max_ranks; ++ranks)
        for (unsigned rank = 0; rank < ranks; ++rank) {
            unsigned met = 0;
            for (unsigned round = 0; round < ranks; ++round) {
                const unsigned partner = protocol::pair_partner(round, rank, ranks);
                EXPECT_EQ(protocol::pair_partner(round, partner, ranks), rank);
                met |= 1u << partner;
            }
            EXPECT_EQ(met, (1u << ranks) - 1);
        }
}

// Packets carry a flag with every four bytes: over links that are slow, that costs more than the hop that
// they save.
TEST(Eager, EndsWhereAHopIsWorthLessThanTheFlags) {
    Operation operation;
    operation.collective = Collective::send_recv;
    std::uint8_t byte = 0;
    operation.pairs.push_back({true, 1, &byte, 100});
    for (const int ranks : {2, 4, 8, 16}) {
        const std::uint64_t held = protocol::ArenaLayout{static_cast<unsigned>(ranks)}.eager_payload();
        GroupFacts facts = group_of(ranks);
        const Choice nvlink = choice_of(operation, facts);
        EXPECT_EQ(nvlink.eager_max, held) << ranks;
        EXPECT_TRUE(nvlink.eager);
        EXPECT_EQ(tasks_of(operation, nvlink, 0, ranks)[0].eager_max, held);
        facts.wire = Wire::pcie;
        facts.figures = built_in_figures(Wire::pcie);
        const Choice pcie = choice_of(operation, facts);
        EXPECT_GE(pcie.eager_max, 1024u) << ranks;
        // A choice may be kept for calls with other blocks.
        operation.pairs[0].bytes = 100'000'000;
        EXPECT_EQ(choice_of(operation, facts).eager_max, pcie.eager_max);
        EXPECT_FALSE(choice_of(operation, facts).eager);
        operation.pairs[0].bytes = 100;
        if (ranks == 2) {
            EXPECT_LT(pcie.eager_max, held);
        }
        // Where they end no larger block is cheaper than a smaller one.
        double before = 0;
        for (std::uint64_t bytes = 64; bytes < 1 << 20; bytes += bytes / 8) {
            operation.pairs[0].bytes = bytes;
            const double us = choice_of(operation, facts).expected_us;
            EXPECT_GE(us, before) << bytes;
            before = us;
        }
        operation.pairs[0].bytes = 100;
    }
}

TEST(SendRecv, BlocksWithoutBytesAreNoBlocks) {
    Operation operation;
    operation.collective = Collective::send_recv;
    operation.pairs.push_back({true, 1, nullptr, 0});
    EXPECT_TRUE(check(operation, 0, 2).ok());
    EXPECT_TRUE(tasks_of(operation, pairs(), 0, 2).empty());
}

TEST(SendRecv, ThreadBlocksFollowFromTheLargestBlock) {
    std::vector<std::uint8_t> bytes(1);
    Operation operation;
    operation.collective = Collective::send_recv;
    operation.pairs.push_back({true, 1, bytes.data(), 200 << 10});
    operation.pairs.push_back({false, 2, bytes.data(), 3});
    EXPECT_EQ(tasks_of(operation, pairs(), 0, 4)[0].blocks, protocol::pair_blocks(200 << 10, 4));
}

}  // namespace
}  // namespace sidestep::collective
