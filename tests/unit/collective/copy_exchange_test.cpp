// The exchange of copies, among ranks and copy engines that go on by chance: whatever the order, no lane is
// written that is not free, nobody writes to a rank that has not come, everybody comes to an end, and the
// next task finds all as the first one did. Addresses are made up; what is copied is looked at, and nothing
// is moved.
#include "protocol/copy_exchange.hpp"

#include <deque>
#include <map>
#include <random>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace sidestep::collective {
namespace {

using protocol::ArenaLayout;
using protocol::CollectiveTask;
using protocol::CopyExchange;
using protocol::FaultKind;

using Lists = std::vector<std::vector<std::uint64_t>>;  // bytes from rank a to rank b

// What an address is made of. Blocks of a buffer lie 1 << 40 apart, by the rank at the other end.
enum Kind : std::uint64_t { send = 1, recv = 2, arena = 3 };
constexpr std::uint64_t block_bytes = std::uint64_t{1} << 40;

char* address(Kind kind, unsigned rank, std::uint64_t offset = 0) {
    return reinterpret_cast<char*>(std::uintptr_t{kind} << 56 | std::uintptr_t{rank} << 48 | offset);
}
struct Spot {
    Kind kind;
    unsigned rank;
    std::uint64_t offset;
};
Spot spot(const void* at) {
    const auto value = reinterpret_cast<std::uintptr_t>(at);
    return {static_cast<Kind>(value >> 56), static_cast<unsigned>(value >> 48 & 0xff),
            value & ((std::uint64_t{1} << 48) - 1)};
}

// With a bit of `mapped` for each rank whose receive buffer the others reach.
CollectiveTask task_of(const Lists& bytes, unsigned rank, unsigned mapped, std::uint32_t signature = 7) {
    CollectiveTask task;
    task.shape = protocol::Shape::copies;
    task.signature = signature;
    task.number = 3;
    task.send = address(send, rank);
    task.recv = address(recv, rank);
    for (unsigned r = 0; r < bytes.size(); ++r) {
        task.to[r] = {r * block_bytes, bytes[rank][r]};
        task.from[r] = {r * block_bytes, bytes[r][rank]};
        if ((mapped >> rank & 1) != 0) task.from_tokens[r] = {1, r * block_bytes};
    }
    return task;
}

struct World;

class Engine final : public protocol::CopyEngine {
public:
    Engine(World& world, unsigned rank) : world_(world), rank_(rank) {}
    Result<void> copy(unsigned lane, char* to, const char* from, std::uint64_t bytes) override;
    bool near(unsigned rank) override;
    Result<bool> ready(unsigned lane) override;
    Result<std::uint64_t> mark(unsigned lane) override {
        lanes_[lane].work.push_back({nullptr, nullptr, 0, ++lanes_[lane].marks});
        return lanes_[lane].marks;
    }
    bool ended(unsigned lane, std::uint64_t mark) override { return lanes_[lane].ended >= mark; }
    char* find(unsigned rank, unsigned slot, std::uint64_t offset, std::uint64_t) override {
        return address(slot == 0 ? arena : recv, rank) + offset;
    }
    protocol::CopyRow& row(unsigned rank) override;
    // Ends what is first in some lane.
    void go_on(unsigned by_chance);

private:
    struct Item {
        char* to;
        const char* from;
        std::uint64_t bytes;
        std::uint64_t mark;
    };
    struct Lane {
        std::deque<Item> work;
        std::uint64_t marks = 0, ended = 0;
        std::size_t ready_in = 0;  // the task that it was said to be ready in, counted from 1
    };
    void apply(const Item& item);
    World& world_;
    const unsigned rank_;
    std::map<unsigned, Lane> lanes_;
};

struct World {
    explicit World(unsigned n, unsigned seed) : ranks(n), random(seed), rows(n), counters(n), number(n) {
        for (unsigned rank = 0; rank < n; ++rank) engines.push_back(std::make_unique<Engine>(*this, rank));
    }
    struct Piece {
        std::uint64_t at = 0, bytes = 0;
    };

    // Several tasks one after the other; a rank may be in a later one than another.
    void run(const std::vector<Lists>& tasks, unsigned mapped) {
        std::vector<std::optional<CollectiveTask>> task(ranks);
        std::vector<std::optional<CopyExchange>> exchange(ranks);
        number.assign(ranks, 0);
        come.assign(ranks, 0);
        for (unsigned looks = 0;; ++looks) {
            ASSERT_LT(looks, 2'000'000u) << "they do not come to an end";
            bool over = true;
            for (unsigned rank = 0; rank < ranks; ++rank) {
                if (number[rank] == tasks.size()) continue;
                over = false;
                engines[rank]->go_on(random());
                if (random() % 3 == 0) continue;
                if (!exchange[rank]) {
                    task[rank] = task_of(tasks[number[rank]], rank, mapped);
                    if (in_place) task[rank]->send = task[rank]->recv;
                    come[rank] = number[rank] + 1;
                    exchange[rank].emplace(*task[rank], rank, ranks, counters[rank], *engines[rank]);
                }
                const auto state = exchange[rank]->step();
                ASSERT_TRUE(state);
                ASSERT_NE(*state, CopyExchange::State::differs);
                if (*state == CopyExchange::State::ended) {
                    EXPECT_FALSE(exchange[rank]->copying());
                    exchange[rank].reset();
                    ++number[rank];
                }
                if (testing::Test::HasFatalFailure()) return;
            }
            if (over) break;
        }
        EXPECT_TRUE(lanes.empty()) << "what lies in a lane is lost";
        for (unsigned a = 0; a < ranks; ++a)
            for (unsigned b = 0; b < ranks; ++b) {
                std::uint64_t bytes = 0;
                for (const Lists& lists : tasks) bytes += lists[a][b];
                EXPECT_EQ((moved[{a, b}]), bytes) << a << " to " << b;
            }
    }

    const unsigned ranks;
    bool in_place = false;
    unsigned on_a_gpu = 1;  // ranks that have the same, one after the other
    std::map<std::tuple<std::size_t, unsigned, std::uint64_t>, std::uint64_t>
        sent;  // of a task, a rank and a block
    std::mt19937 random;
    std::vector<protocol::CopyRow> rows;
    std::vector<protocol::CopyCounters> counters;
    std::vector<std::size_t> number;                                  // of the task that a rank is in
    std::vector<std::size_t> come = std::vector<std::size_t>(ranks);  // tasks that a rank has begun
    std::vector<std::unique_ptr<Engine>> engines;
    std::map<std::pair<unsigned, std::uint64_t>, Piece> lanes;  // by rank and offset: what is there
    std::map<std::pair<unsigned, unsigned>, std::uint64_t> moved;
};

bool Engine::near(unsigned rank) {
    return rank / world_.on_a_gpu == rank_ / world_.on_a_gpu;
}

// Where the ranks of this GPU have not come, their streams may be told to wait before the copies that were
// asked for.
Result<bool> Engine::ready(unsigned lane) {
    for (unsigned rank = 0; rank < world_.ranks; ++rank)
        EXPECT_TRUE(lane != home || !near(rank) || rank == rank_ || world_.come[rank] > world_.number[rank_])
            << "rank " << rank << " has not come";
    const bool is = world_.random() % 3 != 0;
    if (is) lanes_[lane].ready_in = world_.number[rank_] + 1;
    return is;
}

Result<void> Engine::copy(unsigned lane, char* to, const char* from, std::uint64_t bytes) {
    EXPECT_EQ(lanes_[lane].ready_in, world_.number[rank_] + 1) << "nobody has asked for lane " << lane;
    EXPECT_EQ(lane == home, near(spot(to).rank)) << "to rank " << spot(to).rank << " in lane " << lane;
    lanes_[lane].work.push_back({to, from, bytes, 0});
    return {};
}

protocol::CopyRow& Engine::row(unsigned rank) {
    return world_.rows[rank];
}

void Engine::go_on(unsigned by_chance) {
    for (auto& [number, lane] : lanes_) {
        if (lane.work.empty() || (by_chance >>= 1) % 2 == 0) continue;
        const Item item = lane.work.front();
        lane.work.pop_front();
        if (item.mark != 0)
            lane.ended = item.mark;
        else
            apply(item);
    }
}

void Engine::apply(const Item& item) {
    const Spot to = spot(item.to), from = spot(item.from);
    const std::size_t number = world_.number[rank_];
    if (from.kind != arena)
        world_.sent[{number, from.rank, from.offset / block_bytes}] = from.offset % block_bytes + item.bytes;
    if (to.kind == arena) {
        ASSERT_LE(item.bytes, ArenaLayout{world_.ranks}.copy_lane_bytes());
        const bool free =
            world_.lanes
                .emplace(std::pair(to.rank, to.offset), World::Piece{from.offset % block_bytes, item.bytes})
                .second;
        ASSERT_TRUE(free) << "a piece that was not taken is lost";
        return;
    }
    ASSERT_EQ(to.kind, recv);
    std::uint64_t at = from.offset % block_bytes;
    if (from.kind == arena) {
        const auto found = world_.lanes.find({from.rank, from.offset});
        ASSERT_NE(found, world_.lanes.end());
        ASSERT_EQ(found->second.bytes, item.bytes);
        at = found->second.at;
        world_.lanes.erase(found);
    } else {
        // Neither is it there before its owner has come, nor after he has gone.
        ASSERT_EQ(world_.number[to.rank], world_.number[rank_]);
    }
    ASSERT_EQ(to.offset % block_bytes, at);
    if (world_.in_place) {
        const std::uint64_t gone = world_.sent[{number, to.rank, to.offset / block_bytes}];
        ASSERT_GE(gone, at + item.bytes) << "what still has to be sent is written over";
    }
    world_.moved[{static_cast<unsigned>(to.offset / block_bytes), to.rank}] += item.bytes;
}

Lists some_lists(unsigned ranks, std::mt19937& random) {
    const std::uint64_t lane = ArenaLayout{ranks}.copy_lane_bytes();
    const std::uint64_t sizes[] = {0, 1, lane - 1, lane, lane + 1, 2 * lane, 5 * lane + 17};
    Lists lists(ranks, std::vector<std::uint64_t>(ranks));
    for (auto& row : lists)
        for (auto& bytes : row) bytes = sizes[random() % std::size(sizes)];
    return lists;
}

TEST(CopyExchange, InWhateverOrderRanksGoOn) {
    for (const unsigned ranks : {1u, 2u, 3u, 4u, 7u, 16u})
        for (unsigned seed = 0; seed < 20; ++seed) {
            std::mt19937 random(seed);
            const unsigned mapped = seed % 4 == 0 ? 0 : seed % 4 == 1 ? 0xffff : random() & 0xffff;
            SCOPED_TRACE(fmt::format("{} ranks, seed {}, mapped {:#x}", ranks, seed, mapped));
            std::vector<Lists> tasks;
            for (unsigned i = 0; i < 4; ++i) tasks.push_back(some_lists(ranks, random));
            World world(ranks, seed);
            world.on_a_gpu = 1 + seed % 3;
            world.run(tasks, mapped);
            if (::testing::Test::HasFailure()) return;
        }
}

TEST(CopyExchange, InPlaceEachPieceGoesBeforeAnotherTakesItsPlace) {
    for (const unsigned ranks : {2u, 3u, 5u})
        for (unsigned seed = 0; seed < 40; ++seed) {
            const std::uint64_t bytes = ArenaLayout{ranks}.copy_lane_bytes() * 7 + 5;
            Lists lists(ranks, std::vector<std::uint64_t>(ranks, bytes));
            for (unsigned r = 0; r < ranks; ++r) lists[r][r] = 0;
            World world(ranks, seed);
            world.in_place = true;
            world.run({lists, lists}, 0);
            if (::testing::Test::HasFailure()) return;
        }
}

// As a root alone has work.
TEST(CopyExchange, BlocksOfOneRankAlone) {
    for (const unsigned ranks : {2u, 5u})
        for (const unsigned mapped : {0u, 0xffffu})
            for (unsigned seed = 0; seed < 20; ++seed) {
                const std::uint64_t lane = ArenaLayout{ranks}.copy_lane_bytes();
                std::vector<Lists> tasks(3, Lists(ranks, std::vector<std::uint64_t>(ranks)));
                for (Lists& lists : tasks)
                    for (unsigned r = 1; r < ranks; ++r) lists[0][r] = 3 * lane;
                World(ranks, seed).run(tasks, mapped);
                if (::testing::Test::HasFailure()) return;
            }
}

// Counts what it is asked for, and ends nothing.
struct Counting final : protocol::CopyEngine {
    bool near(unsigned) override { return false; }
    Result<bool> ready(unsigned lane) override { return asked.insert(lane), is_ready; }
    Result<void> copy(unsigned lane, char*, const char*, std::uint64_t) override {
        ++copies[lane];
        return {};
    }
    Result<std::uint64_t> mark(unsigned) override { return ++marks; }
    bool ended(unsigned, std::uint64_t) override { return false; }
    char* find(unsigned rank, unsigned slot, std::uint64_t offset, std::uint64_t) override {
        return address(slot == 0 ? arena : recv, rank) + offset;
    }
    protocol::CopyRow& row(unsigned rank) override { return rows[rank]; }
    std::map<unsigned, int> copies;
    int marks = 0;
    bool is_ready = true;
    std::set<unsigned> asked;
    std::vector<protocol::CopyRow> rows = std::vector<protocol::CopyRow>(4);
};

// A block that goes straight is one copy. Small ones follow each other and share a mark, large ones follow
// each other and have one each; those between go side by side.
TEST(CopyExchange, GoesStraightWhereItCan) {
    const std::map<unsigned, int> in_turn{{1, 3}}, side_by_side{{1, 1}, {2, 1}, {3, 1}};
    for (const auto& [size, copies, marks] :
         {std::tuple(32u << 10, in_turn, 1), std::tuple(1u << 20, side_by_side, 3),
          std::tuple(64u << 20, in_turn, 3)}) {
        Counting engine;
        Lists bytes(4, std::vector<std::uint64_t>(4, size));
        for (unsigned r = 0; r < 4; ++r) bytes[r][r] = 0;
        std::vector<CollectiveTask> tasks;
        std::vector<protocol::CopyCounters> counters(4);
        for (unsigned rank = 0; rank < 4; ++rank) tasks.push_back(task_of(bytes, rank, 0xf));
        for (unsigned rank = 1; rank < 4; ++rank) CopyExchange(tasks[rank], rank, 4, counters[rank], engine);
        CopyExchange first(tasks[0], 0, 4, counters[0], engine);
        EXPECT_EQ(*first.step(), CopyExchange::State::moved);
        EXPECT_EQ(*first.step(), CopyExchange::State::copying);
        EXPECT_TRUE(first.copying());
        EXPECT_EQ(engine.copies, copies) << size;
        EXPECT_EQ(engine.marks, marks) << size;
    }
}

// Lanes to others are asked for at once, so that it is known whether they move once the others come.
TEST(CopyExchange, AsksForALaneBeforeItIsNeeded) {
    Counting engine;
    std::vector<protocol::CopyCounters> counters(4);
    const Lists bytes(4, std::vector<std::uint64_t>(4, 1 << 20));
    std::vector<CollectiveTask> tasks;
    for (unsigned rank = 0; rank < 4; ++rank) tasks.push_back(task_of(bytes, rank, 0xf));
    tasks[0].to[0] = tasks[0].from[0] = {};
    CopyExchange first(tasks[0], 0, 4, counters[0], engine);
    EXPECT_EQ(*first.step(), CopyExchange::State::waiting);
    EXPECT_EQ(engine.asked, (std::set<unsigned>{1, 2, 3}));
    engine.is_ready = false;
    CopyExchange second(tasks[1], 1, 4, counters[1], engine);
    EXPECT_EQ(*first.step(), CopyExchange::State::moved);
    EXPECT_EQ(*first.step(), CopyExchange::State::waiting);
    EXPECT_TRUE(engine.copies.empty());
    engine.is_ready = true;
    EXPECT_EQ(*first.step(), CopyExchange::State::moved);
    EXPECT_EQ(engine.copies, (std::map<unsigned, int>{{1, 1}}));
}

// Else two ranks would send to one while nobody sends to another.
TEST(CopyExchange, LargeBlocksGoInOrder) {
    for (const std::uint64_t size : {1u << 20, 64u << 20}) {
        Counting engine;
        std::vector<CollectiveTask> tasks;
        std::vector<protocol::CopyCounters> counters(4);
        Lists bytes(4, std::vector<std::uint64_t>(4, size));
        for (unsigned r = 0; r < 4; ++r) bytes[r][r] = 0;
        for (unsigned rank = 0; rank < 4; ++rank) tasks.push_back(task_of(bytes, rank, 0xf));
        CopyExchange first(tasks[0], 0, 4, counters[0], engine);
        CopyExchange second(tasks[2], 2, 4, counters[2], engine), third(tasks[3], 3, 4, counters[3], engine);
        EXPECT_EQ(*first.step(), CopyExchange::State::moved);
        const bool large = size != 1 << 20;
        EXPECT_EQ(engine.marks, large ? 0 : 2);
        CopyExchange(tasks[1], 1, 4, counters[1], engine);
        EXPECT_EQ(*first.step(), CopyExchange::State::moved);
        EXPECT_EQ(engine.marks, 3);
    }
}

TEST(CopyExchange, LanesLieBesideEachOther) {
    for (unsigned ranks = 2; ranks <= protocol::max_ranks; ++ranks) {
        const ArenaLayout layout{ranks};
        std::map<std::uint64_t, std::uint64_t> ranges;
        for (unsigned parity = 0; parity < 2; ++parity)
            for (unsigned sender = 1; sender < ranks; ++sender)
                ranges[layout.copy_lane(parity, 0, sender)] = layout.copy_lane_bytes();
        EXPECT_EQ(ranges.size(), 2 * (ranks - 1));
        std::uint64_t end = layout.stage_out(0, 0, 0);
        for (const auto& [begin, bytes] : ranges) {
            EXPECT_GE(begin, end);
            end = begin + bytes;
        }
        EXPECT_LE(end, layout.copy_row());
        EXPECT_EQ(layout.copy_row() % alignof(protocol::CopyRow), 0u);
        EXPECT_EQ(layout.copy_row() + sizeof(protocol::CopyRow), layout.bytes());
        EXPECT_GE(layout.copy_lane_bytes(), 512u << 10);
    }
}

// Each of two that disagree sees it, and neither writes to the other.
TEST(CopyExchange, RanksThatRunSomethingElse) {
    World world(2, 1);
    const Lists bytes(2, std::vector<std::uint64_t>(2, 100));
    const CollectiveTask tasks[] = {task_of(bytes, 0, 3, 5), task_of(bytes, 1, 3, 9)};
    CopyExchange first(tasks[0], 0, 2, world.counters[0], *world.engines[0]);
    EXPECT_NE(*first.step(), CopyExchange::State::differs) << "nobody else has come";
    EXPECT_EQ(first.missing(), 1u);
    CopyExchange second(tasks[1], 1, 2, world.counters[1], *world.engines[1]);
    for (auto [exchange, own, theirs] : {std::tuple(&first, 5u, 9u), std::tuple(&second, 9u, 5u)}) {
        EXPECT_EQ(*exchange->step(), CopyExchange::State::differs);
        EXPECT_EQ(exchange->fault().kind, FaultKind::mismatch);
        EXPECT_EQ(exchange->fault().signature, own);
        EXPECT_EQ(exchange->fault().peer_signature, theirs);
        EXPECT_EQ(exchange->fault().number, 3u);
    }
    for (unsigned again = 0; again < 20; ++again)
        for (auto& engine : world.engines) engine->go_on(0xffff);
    EXPECT_EQ((world.moved[{0, 1}]), 0u);
    EXPECT_EQ((world.moved[{1, 0}]), 0u);
}

TEST(CopyExchange, ABlockOfTwoLengths) {
    World world(2, 1);
    const CollectiveTask sender = task_of({{0, 1000}, {0, 0}}, 0, 3),
                         receiver = task_of({{0, 70'000}, {0, 0}}, 1, 3);
    CopyExchange second(receiver, 1, 2, world.counters[1], *world.engines[1]);
    CopyExchange first(sender, 0, 2, world.counters[0], *world.engines[0]);
    EXPECT_EQ(*first.step(), CopyExchange::State::differs);
    EXPECT_EQ(first.fault().kind, FaultKind::size_mismatch);
    EXPECT_EQ(first.fault().peer, 1u);
    EXPECT_EQ(first.fault().bytes, 1000u);
    EXPECT_EQ(first.fault().peer_bytes, 70'000u);
}

TEST(CopyExchange, WhatLiesInItsOwnWay) {
    const Lists bytes(3, std::vector<std::uint64_t>(3, 100));
    CollectiveTask task = task_of(bytes, 0, 7);
    EXPECT_FALSE(protocol::send_overlaps_recv(task, 0, 3));
    task.send = task.recv;
    EXPECT_TRUE(protocol::send_overlaps_recv(task, 0, 3));
    // A part that is handed on beside those that come.
    for (unsigned r = 0; r < 3; ++r) task.to[r] = {0, 100};
    EXPECT_FALSE(protocol::send_overlaps_recv(task, 0, 3));
    task.to[2].bytes = block_bytes + 1;
    EXPECT_TRUE(protocol::send_overlaps_recv(task, 0, 3));
}

// Whoever waits for it gives up in the end: a word that goes to and fro is no news.
TEST(CopyExchange, WhoTakesBackWhatItSaidMovesNothing) {
    Counting engine;
    protocol::CopyCounters counters;
    const CollectiveTask task = task_of({{0, 0}, {1000, 0}}, 0, 3);
    CopyExchange exchange(task, 0, 2, counters, engine);
    EXPECT_EQ(*exchange.step(), CopyExchange::State::waiting);
    std::atomic<std::uint64_t>& delivered = engine.rows[0].from[1].delivered;
    delivered = 1;
    EXPECT_EQ(*exchange.step(), CopyExchange::State::moved);
    for (const std::uint64_t said : {0, 1, 0, 7, 0}) {
        delivered = said;
        EXPECT_EQ(*exchange.step(), CopyExchange::State::waiting) << said;
    }
}

}  // namespace
}  // namespace sidestep::collective
