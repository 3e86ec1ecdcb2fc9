// The steps of copies, carried out by ranks that take turns by chance: whatever the order, no word is raised
// that is up, no lane is written that is not free, everybody comes to an end, and everything is as it was
// before.
#include "backend/copy_steps.hpp"

#include <map>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace sidestep::collective {
namespace {

using backend::ArenaLayout;
using backend::CollectiveTask;
using backend::CopyStep;
using backend::FaultKind;

using Lists = std::vector<std::vector<std::uint64_t>>;  // bytes from rank a to rank b

CollectiveTask task_of(const Lists& bytes, unsigned rank, std::uint32_t signature = 7) {
    CollectiveTask task;
    task.shape = backend::Shape::copies;
    task.signature = signature;
    for (unsigned r = 0; r < bytes.size(); ++r) {
        task.to[r] = {r * (std::uint64_t{1} << 40), bytes[rank][r]};
        task.from[r] = {r * (std::uint64_t{1} << 40), bytes[r][rank]};
    }
    return task;
}

// What lies in a lane: where in the sender's block it comes from.
struct Piece {
    bool full = false;
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;
};

class Model {
public:
    Model(unsigned ranks, unsigned seed) : ranks_(ranks), words_(ranks), lanes_(ranks), random_(seed) {}

    // Several tasks one after the other; a rank may be in a later one than another.
    void run(const std::vector<Lists>& tasks) {
        std::vector<std::vector<std::pair<unsigned, CopyStep>>> steps(ranks_);
        for (unsigned number = 0; number < tasks.size(); ++number)
            for (unsigned rank = 0; rank < ranks_; ++rank)
                for (const CopyStep& step : backend::copy_steps(task_of(tasks[number], rank), rank, ranks_))
                    steps[rank].emplace_back(number, step);
        tasks_ = &tasks;
        std::vector<std::size_t> next(ranks_);
        for (;;) {
            std::vector<unsigned> able;
            bool over = true;
            for (unsigned rank = 0; rank < ranks_; ++rank) {
                if (next[rank] == steps[rank].size()) continue;
                over = false;
                if (can(rank, steps[rank][next[rank]])) able.push_back(rank);
            }
            if (over) return check_end();
            ASSERT_FALSE(able.empty()) << "nobody can go on";
            // Often the same one for long: it gets as far ahead as it can.
            const unsigned rank = random_() % 4 == 0 ? able[random_() % able.size()] : able.front();
            for (unsigned i = 0; i < 1 + random_() % 8 && next[rank] < steps[rank].size(); ++i) {
                if (!can(rank, steps[rank][next[rank]])) break;
                act(rank, steps[rank][next[rank]++]);
                if (testing::Test::HasFatalFailure()) return;
            }
        }
    }

private:
    std::uint64_t tag(const std::pair<unsigned, CopyStep>& one, unsigned rank, bool sends) const {
        return backend::tag_of(task_of((*tasks_)[one.first], rank), rank, one.second.peer, sends);
    }

    bool can(unsigned rank, const std::pair<unsigned, CopyStep>& one) {
        const CopyStep& step = one.second;
        if (step.kind != CopyStep::Kind::await) return true;
        const std::uint64_t word = words_[rank][{step.row, step.peer}];
        if (word != 0) {
            EXPECT_EQ(word, tag(one, rank, !backend::is_arrived(step.row)));
        }
        return word != 0;
    }

    void act(unsigned rank, const std::pair<unsigned, CopyStep>& one) {
        const CopyStep& step = one.second;
        const std::uint64_t lane = ArenaLayout{ranks_}.copy_lane_bytes();
        switch (step.kind) {
            case CopyStep::Kind::raise: {
                std::uint64_t& word = words_[step.peer][{step.row, rank}];
                ASSERT_EQ(word, 0u) << "raised twice";
                word = tag(one, rank, backend::is_arrived(step.row));
                return;
            }
            case CopyStep::Kind::clear:
                for (unsigned i = 0; i < step.words; ++i) {
                    if (step.peer + i == rank) continue;
                    std::uint64_t& word = words_[rank][{step.row, step.peer + i}];
                    ASSERT_NE(word, 0u) << "cleared what was not waited for";
                    word = 0;
                }
                return;
            case CopyStep::Kind::push: {
                ASSERT_LE(step.bytes, lane);
                Piece& piece = lanes_[step.peer][step.stage];
                ASSERT_FALSE(piece.full) << "a piece that was not taken is lost";
                piece = {true, step.at, step.bytes};
                return;
            }
            case CopyStep::Kind::pull: {
                Piece& piece = lanes_[rank][step.stage];
                ASSERT_TRUE(piece.full);
                // Blocks begin at multiples of 1 << 40 of the other's rank, so what is left is the place in
                // the block.
                ASSERT_EQ(piece.at & 0xffffffffff, step.at & 0xffffffffff);
                ASSERT_EQ(piece.bytes, step.bytes);
                piece.full = false;
                moved_[{step.peer, rank}] += step.bytes;
                return;
            }
            default:
                return;
        }
    }

    void check_end() {
        for (const auto& own : words_)
            for (const auto& [place, word] : own) EXPECT_EQ(word, 0u);
        for (const auto& own : lanes_)
            for (const auto& [place, piece] : own) EXPECT_FALSE(piece.full);
        for (unsigned a = 0; a < ranks_; ++a)
            for (unsigned b = 0; b < ranks_; ++b) {
                std::uint64_t bytes = 0;
                for (const Lists& lists : *tasks_) bytes += a == b ? 0 : lists[a][b];
                EXPECT_EQ((moved_[{a, b}]), bytes) << a << " to " << b;
            }
    }

    const unsigned ranks_;
    const std::vector<Lists>* tasks_ = nullptr;
    std::vector<std::map<std::pair<unsigned, unsigned>, std::uint64_t>> words_;
    std::vector<std::map<std::uint64_t, Piece>> lanes_;
    std::map<std::pair<unsigned, unsigned>, std::uint64_t> moved_;
    std::mt19937 random_;
};

Lists some_lists(unsigned ranks, std::mt19937_64& random) {
    const std::uint64_t lane = ArenaLayout{ranks}.copy_lane_bytes();
    const std::uint64_t sizes[] = {0, 1, lane - 1, lane, lane + 1, 2 * lane, 5 * lane + 17};
    Lists lists(ranks, std::vector<std::uint64_t>(ranks));
    for (auto& row : lists)
        for (auto& bytes : row) bytes = sizes[random() % std::size(sizes)];
    return lists;
}

TEST(CopySteps, InWhateverOrderRanksGoOn) {
    for (const unsigned ranks : {2u, 3u, 4u, 7u, 16u})
        for (unsigned seed = 0; seed < 40; ++seed) {
            SCOPED_TRACE(fmt::format("{} ranks, seed {}", ranks, seed));
            std::mt19937_64 random(seed);
            std::vector<Lists> tasks;
            for (unsigned i = 0; i < 4; ++i) tasks.push_back(some_lists(ranks, random));
            Model(ranks, seed).run(tasks);
            if (HasFailure()) return;
        }
}

// As a root alone has work, which may be tasks ahead of the others.
TEST(CopySteps, BlocksOfOneRankAlone) {
    for (const unsigned ranks : {2u, 5u})
        for (unsigned seed = 0; seed < 40; ++seed) {
            const std::uint64_t lane = ArenaLayout{ranks}.copy_lane_bytes();
            std::vector<Lists> tasks(3, Lists(ranks, std::vector<std::uint64_t>(ranks)));
            for (Lists& lists : tasks)
                for (unsigned r = 1; r < ranks; ++r) lists[0][r] = 3 * lane;
            Model(ranks, seed).run(tasks);
            if (HasFailure()) return;
        }
}

TEST(CopySteps, LanesLieBesideEachOther) {
    for (unsigned ranks = 2; ranks <= backend::most_ranks; ++ranks) {
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
        EXPECT_LE(end, layout.copy_words(0));
        EXPECT_EQ(layout.copy_words(0) % 8, 0u);
        EXPECT_EQ(layout.copy_arrived(1, backend::most_ranks), layout.bytes());
        EXPECT_GE(layout.copy_lane_bytes(), 512u << 10);
    }
}

TEST(CopySteps, TagsAreBelowWhatLetsEveryoneGo) {
    for (const std::uint32_t signature : {1u, 77u, 0xffffffffu})
        for (const std::uint64_t bytes : {std::uint64_t{0}, backend::most_tagged_bytes - 1})
            for (const bool up : {false, true}) {
                const std::uint64_t tag = backend::copy_tag(signature, bytes, up ? 0 : 1, up ? 1 : 0);
                EXPECT_GE(tag, std::uint64_t{1} << 62);
                EXPECT_LE(tag, backend::copy_release);
            }
}

// Where two ranks run something else, each comes to a word that is less than what it waits for.
TEST(CopySteps, OfTwoThatDisagreeBothStay) {
    for (const auto& [a, b] : {std::pair(5u, 9u), std::pair(9u, 5u), std::pair(1u, 0xffffffffu)}) {
        const Lists lists(2, std::vector<std::uint64_t>(2, 100));
        const CollectiveTask one = task_of(lists, 0, a), other = task_of(lists, 1, b);
        for (const unsigned rank : {0u, 1u}) {
            const CollectiveTask& own = rank == 0 ? one : other;
            const CollectiveTask& theirs = rank == 0 ? other : one;
            unsigned stays = 0;
            for (const std::uint8_t row : {backend::row_ready, backend::row_arrived}) {
                const bool sends = !backend::is_arrived(row);
                const std::uint64_t raised = backend::tag_of(theirs, 1 - rank, rank, !sends);
                stays += raised < backend::tag_of(own, rank, 1 - rank, sends);
                const auto fault = backend::fault_of_word(own, rank, 1 - rank, row, raised);
                EXPECT_EQ(fault.kind, FaultKind::mismatch);
                EXPECT_EQ(fault.signature, own.signature);
                EXPECT_EQ(fault.peer_signature, theirs.signature);
            }
            EXPECT_EQ(stays, 1u) << "rank " << rank;
        }
    }
}

TEST(CopySteps, ABlockOfTwoLengths) {
    const CollectiveTask sender = task_of({{0, 1000}, {0, 0}}, 0),
                         receiver = task_of({{0, 70'000}, {0, 0}}, 1);
    const auto fault =
        backend::fault_of_word(sender, 0, 1, backend::row_ready, backend::tag_of(receiver, 1, 0, false));
    EXPECT_EQ(fault.kind, FaultKind::size_mismatch);
    EXPECT_EQ(fault.bytes, 1000u);
    EXPECT_EQ(fault.peer_bytes, 70'000u);
}

}  // namespace
}  // namespace sidestep::collective
