// A rank that writes what it wants into the words of the others' arenas that are its own to write: their tasks end within
// the deadline, and touch nothing but their own buffers and what it has lent.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <thread>

#include <fmt/format.h>

#include "jobs.hpp"
#include "tests/chance.hpp"

namespace sidestep::collective_seat::hostile {
namespace {

using protocol::ArenaLayout;
using protocol::CollectiveTask;
using protocol::CopyLine;
using protocol::CopyRow;
using protocol::Shape;

constexpr unsigned ranks = 3;
constexpr unsigned liar = 1;
constexpr std::uint32_t signature = 5;
constexpr std::size_t heap = 2 << 20;
constexpr std::size_t sends = 4096, receives = 1 << 20;
// Of the liar's memory the others have this much, and what lies behind it is not theirs.
constexpr std::size_t lent = heap - (1 << 18);
constexpr char untouched = 0x5a;
constexpr std::chrono::milliseconds deadline{30};

struct Kind {
    Shape shape;
    bool staged = false;
    std::uint64_t bytes = 4096;  // between any two ranks
};
void PrintTo(const Kind& kind, std::ostream* out) {
    *out << name_of(kind.shape) << (kind.staged ? ", staged, " : ", ") << kind.bytes << " bytes";
}

// Everything in one arena that is the liar's to write, but for the data itself.
class Scribbler {
public:
    Scribbler(Crew& crew, unsigned rank, std::uint64_t seed, const Kind& kind)
        : rig_(crew.rig()),
          arena_(static_cast<char*>(crew.seat(rank).arena().address())),
          chance_(seed),
          kind_(kind) {}

    void scribble() {
        const unsigned block = static_cast<unsigned>(chance_.below(4));
        const unsigned either = static_cast<unsigned>(chance_.below(2));
        switch (chance_.below(9)) {
            case 0:
                return line(layout_.entry(either, block, liar), token(), token());
            case 1:
                return line(layout_.post(either, block, liar), token(), bytes());
            case 2:
                return packet(layout_.header(chance_.below(3) == 0, either, liar));
            case 3:
                return packet(layout_.eager(either, block, liar));
            case 4:
                return copy_line();
            case 5:
                return words(layout_.packets(either, 0, liar), 1);
            case 6:
                return words(layout_.lines(either, 0, liar) + 15 * 8, 1);
            default: {
                const std::uint64_t flags[] = {layout_.flags(block, liar), layout_.arrived(block, liar),
                                               layout_.credit(block, liar)};
                return words(chance_.one_of(flags), 1);
            }
        }
    }

private:
    static constexpr unsigned slot_shift = 48;

    // Of what is lent, of what is not, and of neither.
    std::uint64_t token() {
        const std::uint64_t slots[] = {0,     1, 1, 1, 1, 2, protocol::max_slots - 1, protocol::max_slots,
                                       0xffff};
        const std::uint64_t offsets[] = {0,
                                         receives,
                                         lent - kind_.bytes,
                                         lent - kind_.bytes + 16,
                                         lent - 1,
                                         lent,
                                         heap - kind_.bytes,
                                         heap,
                                         (1ull << 48) - 1,
                                         chance_.number()};
        return chance_.one_of(slots) << slot_shift | (chance_.one_of(offsets) & ((1ull << slot_shift) - 1));
    }
    std::uint64_t bytes() { return chance_.below(4) == 0 ? chance_.number() : kind_.bytes; }
    std::uint64_t some_signature() { return chance_.below(6) == 0 ? chance_.number() : signature; }

    // With the flags that the first tasks look for.
    void line(std::uint64_t at, std::uint64_t first, std::uint64_t second) {
        const std::uint64_t values[4] = {first, second, some_signature(), chance_.number()};
        const std::uint32_t flag = protocol::packet_flag(chance_.below(3));
        for (unsigned i = 0; i < 4; ++i) store_packet(at + 16 * i, values[i], flag);
    }
    void packet(std::uint64_t at) {
        store_packet(at, some_signature() | (chance_.below(2) == 0 ? kind_.bytes << 32 : 0),
                     protocol::packet_flag(chance_.below(3)));
    }
    void words(std::uint64_t at, unsigned count) {
        for (unsigned i = 0; i < count; ++i)
            store(at + 8 * i, chance_.below(2) == 0 ? chance_.number() : chance_.below(4));
    }
    void copy_line() {
        const std::uint64_t line = layout_.copy_row() + offsetof(CopyRow, from) + liar * sizeof(CopyLine);
        store(line + offsetof(CopyLine, token), token());
        store(line + offsetof(CopyLine, bytes), bytes());
        store(line + offsetof(CopyLine, signature), some_signature());
        store(line + offsetof(CopyLine, taken), chance_.number());
        store(line + offsetof(CopyLine, delivered), chance_.below(3));
        store(line + offsetof(CopyLine, turn), chance_.below(3));
    }
    void store_packet(std::uint64_t at, std::uint64_t value, std::uint32_t flag) {
        store(at + 8, std::uint64_t{flag} << 32 | value >> 32);
        store(at, std::uint64_t{flag} << 32 | (value & 0xffffffff));
    }
    void store(std::uint64_t at, std::uint64_t value) { rig_.poke(arena_ + at, value); }

    Rig& rig_;
    char* const arena_;
    Chance chance_;
    const Kind kind_;
    const ArenaLayout layout_{ranks};
};

class HostileWords : public testing::TestWithParam<Kind> {
protected:
    CollectiveTask task(const Crew& crew, unsigned rank) const {
        const std::uint64_t bytes = GetParam().bytes;
        CollectiveTask task;
        task.shape = GetParam().shape;
        task.element = protocol::Element::f32;
        if (task.shape != Shape::pairs && task.shape != Shape::copies) task.combine = protocol::Combine::sum;
        task.blocks = 2;
        task.signature = signature;
        task.number = 1;
        task.send = crew.at(rank, sends);
        task.recv = crew.at(rank, receives);
        if (!GetParam().staged) {
            task.send_token = {1, sends};
            task.recv_token = {1, receives};
        }
        const bool same_place = task.shape == Shape::packets || task.shape == Shape::lamport;
        for (unsigned r = 0; r < ranks; ++r) {
            task.to[r] = {r * bytes, bytes};
            task.from[r] = {same_place ? 0 : r * bytes, bytes};
            if (!GetParam().staged) task.from_tokens[r] = {1, receives + task.from[r].offset};
            task.slices[r] = even_slice(bytes / 4, r, ranks);
        }
        return task;
    }

    // False: it hangs.
    static bool scribble_until_idle(Crew& crew, std::uint64_t seed) {
        Scribbler first(crew, 0, seed, GetParam());
        Scribbler second(crew, 2, seed + 1, GetParam());
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!*crew.seat(0).idle() || !*crew.seat(2).idle()) {
            for (int i = 0; i < 20; ++i) {
                first.scribble();
                second.scribble();
            }
            if (std::chrono::steady_clock::now() > until) return false;
            std::this_thread::yield();
        }
        return true;
    }

    static void expect_untouched(Crew& crew) {
        const std::uint64_t received = ranks * GetParam().bytes;
        for (const unsigned rank : {0u, 2u}) {
            EXPECT_TRUE(crew.holds(rank, 0, Values(receives, untouched))) << "rank " << rank;
            const std::size_t behind = heap - receives - received;
            EXPECT_TRUE(crew.holds(rank, heap - behind, Values(behind, untouched))) << "rank " << rank;
        }
        EXPECT_TRUE(crew.holds(liar, lent, Values(heap - lent, untouched))) << "what was not lent";
    }
};

TEST_P(HostileWords, TouchNothingButWhatIsLent) {
    for (const std::uint64_t seed : seeds(20)) {
        // A crash says no more.
        fmt::print(stderr, "seed {}\n", seed);
        Crew crew(ranks, static_cast<std::uint64_t>(deadline / std::chrono::nanoseconds(1)), heap);
        if (!crew.ready()) GTEST_SKIP() << "there are fewer than " << ranks << " GPUs";
        for (const unsigned rank : {0u, 2u})
            ASSERT_TRUE(crew.seat(rank).reach(liar, 1, {crew.at(liar, 0), lent}).ok());
        for (unsigned rank = 0; rank < ranks; ++rank) crew.fill(rank, 0, heap, untouched);
        if (seed % 2 == 0) crew.start(liar, task(crew, liar));
        for (const unsigned rank : {0u, 2u}) crew.start(rank, task(crew, rank));
        ASSERT_TRUE(scribble_until_idle(crew, 2 * seed)) << "they hang, with seed " << seed;
        expect_untouched(crew);
        ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
}

// The shapes that write where a rank says, and one that says what it has not lent.
class HostileTokens : public HostileWords {};

TEST_P(HostileTokens, PastWhatIsLentAreNamed) {
    for (const protocol::Token token : {protocol::Token{1, lent - 16}, protocol::Token{1, lent},
                                        protocol::Token{1, heap}, protocol::Token{1, (1ull << 48) - 1},
                                        protocol::Token{2, 0}, protocol::Token{protocol::max_slots, 0}}) {
        SCOPED_TRACE(fmt::format("slot {}, offset {}", token.slot, token.offset));
        Crew crew(ranks, 5'000'000'000, heap);
        if (!crew.ready()) GTEST_SKIP() << "there are fewer than " << ranks << " GPUs";
        for (const unsigned rank : {0u, 2u})
            ASSERT_TRUE(crew.seat(rank).reach(liar, 1, {crew.at(liar, 0), lent}).ok());
        for (unsigned rank = 0; rank < ranks; ++rank) crew.fill(rank, 0, heap, untouched);
        for (unsigned rank = 0; rank < ranks; ++rank) {
            CollectiveTask one = task(crew, rank);
            if (rank == liar) one.recv_token = one.send_token = token;
            if (rank == liar) std::fill(std::begin(one.from_tokens), std::end(one.from_tokens), token);
            crew.start(rank, one);
        }
        for (const unsigned rank : {0u, 2u}) {
            ASSERT_TRUE(crew.wait_idle(rank));
            const auto fault = crew.seat(rank).fault();
            ASSERT_TRUE(fault.has_value()) << "rank " << rank;
            EXPECT_EQ(fault->kind, protocol::FaultKind::mismatch) << to_string(*fault);
            EXPECT_EQ(fault->peer, liar);
            EXPECT_EQ(fault->signature, fault->peer_signature);
        }
        expect_untouched(crew);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HostileTokens,
                         testing::Values(Kind{Shape::slices}, Kind{Shape::pushed_slices},
                                         Kind{Shape::pairs, false, 100'000}, Kind{Shape::copies}));
INSTANTIATE_TEST_SUITE_P(Shapes, HostileWords,
                         testing::Values(Kind{Shape::packets}, Kind{Shape::lamport},
                                         Kind{Shape::packets_two_phase}, Kind{Shape::lines},
                                         Kind{Shape::slices}, Kind{Shape::slices, true},
                                         Kind{Shape::pushed_slices}, Kind{Shape::pairs},
                                         Kind{Shape::pairs, false, 100'000},
                                         Kind{Shape::pairs, true, 100'000}, Kind{Shape::copies},
                                         Kind{Shape::copies, true, 100'000}, Kind{Shape::ring}));

}  // namespace
}  // namespace sidestep::collective_seat::hostile
