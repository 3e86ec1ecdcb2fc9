// What comes out of reductions: for every type and way of combining, every shape, count and alignment.
#include <gtest/gtest.h>

#include "jobs.hpp"

namespace sidestep::collective_seat::reduction {
namespace {

using protocol::Combine;
using protocol::Element;
using protocol::Shape;

constexpr Combine combines[] = {Combine::sum, Combine::prod, Combine::min,
                                Combine::max, Combine::avg,  Combine::scaled_sum};

std::vector<Values> some_inputs(const Reduced& reduced, std::uint64_t count, unsigned ranks, unsigned seed) {
    Random random(seed);
    std::vector<Values> inputs;
    for (unsigned rank = 0; rank < ranks; ++rank)
        inputs.push_back(some_values(reduced.element, reduced.combine, count, ranks, random));
    return inputs;
}

// Ranks may have scales of their own.
std::vector<double> some_scales(unsigned ranks) {
    std::vector<double> scales;
    for (unsigned rank = 0; rank < ranks; ++rank) scales.push_back(rank % 2 == 0 ? 1 : 2);
    return scales;
}

void expect_alike(const std::vector<Values>& outputs) {
    for (std::size_t rank = 1; rank < outputs.size(); ++rank)
        EXPECT_EQ(outputs[rank], outputs[0]) << "rank " << rank;
}

class Reductions : public testing::TestWithParam<unsigned> {
protected:
    void SetUp() override {
        if (!Crew::of(GetParam()).ready()) GTEST_SKIP() << "there are fewer than " << GetParam() << " GPUs";
    }
    Crew& crew() { return Crew::of(GetParam()); }

    void check(const How& how, const Reduced& reduced, std::uint64_t count) {
        // Calls with factors share no launch.
        if (how.shape == protocol::Shape::coalesced && reduced.combine == Combine::scaled_sum) return;
        SCOPED_TRACE(to_string(how) + ", " + std::to_string(count) + " " + name_of(reduced.element) + " " +
                     name_of(reduced.combine));
        const auto inputs = some_inputs(reduced, count, GetParam(), static_cast<unsigned>(count));
        const auto outputs = all_reduce(crew(), how, reduced, inputs);
        ASSERT_EQ(outputs.size(), GetParam());
        expect_alike(outputs);
        EXPECT_EQ(
            wrong_element(reduced.element, reduced.combine, inputs, some_scales(GetParam()), outputs[0]), "");
    }
};

TEST_P(Reductions, EveryTypeAndCombineInEveryShape) {
    for (unsigned type = 0; type < protocol::elements; ++type) {
        for (const Combine combine : combines) {
            Reduced reduced{element_of(type), combine, {}, type % 2 == 1};
            if (combine == Combine::scaled_sum) reduced.scales = some_scales(GetParam());
            for (const How& how : all_ways(reduced.element)) check(how, reduced, 71);
            if (HasFatalFailure()) return;
        }
    }
}

TEST_P(Reductions, EveryCount) {
    for (const Element element : {Element::u8, Element::bf16, Element::f32, Element::i64}) {
        for (const std::uint64_t count :
             {0, 1, 3, 5, 7, 13, 17, 31, 32, 33, 127, 129, 511, 513, 1023, 1025, 4095}) {
            for (How how : all_ways(element)) {
                how.blocks = 1 + count % 3;
                check(how, {element, Combine::sum, {}, false}, count);
            }
            if (HasFatalFailure()) return;
        }
    }
}

TEST_P(Reductions, TheSameBitsInEveryShapeBlockCountAndAlignment) {
    for (const Element element :
         {Element::f16, Element::f32, Element::f64, Element::bf16, Element::f8_e4m3}) {
        const Reduced reduced{element, Combine::sum, {}, false};
        const auto inputs = some_inputs(reduced, 1003, GetParam(), 7);
        const auto expected = all_reduce(crew(), {.shape = Shape::packets}, reduced, inputs);
        for (How how : all_ways(element)) {
            for (const unsigned blocks : {1u, 2u, 7u, 64u}) {
                how.blocks = blocks;
                if (!has_room(crew(), how)) continue;
                how.in_place = blocks % 2 == 0;
                how.send_shift = protocol::size_of(element) * (blocks % 16);
                how.recv_shift = protocol::size_of(element) * (blocks % 5);
                SCOPED_TRACE(to_string(how) + " " + name_of(element));
                EXPECT_EQ(all_reduce(crew(), how, reduced, inputs), expected);
            }
        }
    }
}

TEST_P(Reductions, AnyAlignment) {
    for (const Element element : {Element::i8, Element::f16, Element::f64}) {
        const Reduced reduced{element, Combine::sum, {}, false};
        const unsigned size = protocol::size_of(element);
        const auto inputs = some_inputs(reduced, 333, GetParam(), 5);
        const auto expected = all_reduce(crew(), {}, reduced, inputs);
        for (How how : all_ways(element)) {
            how.blocks = 3;
            for (unsigned shift = 1; shift < 16; ++shift) {
                how.send_shift = shift * size;
                how.recv_shift = (15 - shift) * size;
                SCOPED_TRACE(to_string(how));
                EXPECT_EQ(all_reduce(crew(), how, reduced, inputs), expected);
            }
        }
    }
}

// Several pieces of each block through the arenas; as much as packets can carry.
TEST_P(Reductions, Large) {
    const protocol::ArenaLayout layout{GetParam()};
    const std::uint64_t staged = layout.stage_bytes() * GetParam() * 5 + 12;
    for (const unsigned blocks : {1u, 2u}) {
        check({.shape = Shape::slices, .staged = true, .blocks = blocks},
              {Element::i32, Combine::sum, {}, false}, staged / 4);
        check({.shape = Shape::slices, .blocks = blocks, .in_place = true},
              {Element::bf16, Combine::avg, {}, false}, 70'001);
        for (const bool in_place : {false, true})
            check({.shape = Shape::pushed_slices, .blocks = blocks, .in_place = in_place},
                  {Element::i32, Combine::sum, {}, false}, staged / 4);
    }
    // Blocks whose pieces lie on the in stage, which have no share where results have to be staged too.
    for (const bool in : {false, true}) {
        const How how{.shape = Shape::pushed_slices, .staged = in, .blocks = protocol::max_blocks};
        if (has_room(crew(), how)) check(how, {Element::bf16, Combine::sum, {}, false}, 300'001);
    }
    check({.shape = Shape::packets, .blocks = 8}, {Element::i32, Combine::max, {}, false},
          layout.packet_payload() / 4);
    check({.shape = Shape::packets_two_phase, .blocks = 8}, {Element::u8, Combine::sum, {}, false},
          std::min<std::uint64_t>(layout.packet_payload() * GetParam(), 1 << 20));
}

// As much as its lanes hold, several units of each thread, a last one that is cut short.
TEST_P(Reductions, LargeInLamport) {
    const std::uint64_t held = protocol::ArenaLayout{GetParam()}.lamport_payload();
    for (const unsigned blocks : {1u, 8u}) {
        check({.shape = Shape::lamport, .blocks = blocks}, {Element::f32, Combine::sum, {}, false}, held / 4);
        check({.shape = Shape::lamport, .blocks = blocks, .send_shift = 3, .recv_shift = 9},
              {Element::f8_e4m3, Combine::max, {}, false}, 30'001);
        check({.shape = Shape::lamport, .blocks = blocks, .in_place = true},
              {Element::bf16, Combine::scaled_sum, some_scales(GetParam()), true}, 23'003);
    }
}

// Words of all ones, which mean that nothing has come yet, and their neighbours: NaNs of every kind among
// numbers. What comes out has the bits that it has in packets, which carry every word as it is.
TEST_P(Reductions, NansOfAllOnesInLamport) {
    for (const Element element :
         {Element::f32, Element::f16, Element::bf16, Element::f8_e4m3, Element::f8_e5m2})
        for (const Combine combine : combines) {
            Reduced reduced{element, combine, {}, false};
            if (combine == Combine::scaled_sum) reduced.scales = some_scales(GetParam());
            auto inputs = some_inputs(reduced, 256, GetParam(), 6);
            for (unsigned rank = 0; rank < GetParam(); ++rank)
                for (std::size_t byte = 0; byte < inputs[rank].size(); ++byte)
                    if (byte / 4 % (rank + 2) == 0) inputs[rank][byte] = '\xff';
            const auto expected = all_reduce(crew(), {.shape = Shape::packets}, reduced, inputs);
            for (const unsigned blocks : {1u, 3u}) {
                SCOPED_TRACE(std::string(name_of(element)) + " " + name_of(combine));
                EXPECT_EQ(all_reduce(crew(), {.shape = Shape::lamport, .blocks = blocks}, reduced, inputs),
                          expected);
            }
        }
}

// Batches of rows in each warp, and what is left over: whole units, units cut short at the end, and
// misaligned ones.
TEST_P(Reductions, LargeInLines) {
    for (const unsigned blocks : {1u, 8u}) {
        check({.shape = Shape::lines, .blocks = blocks}, {Element::i32, Combine::sum, {}, false}, 40'000);
        check({.shape = Shape::lines, .blocks = blocks, .send_shift = 3, .recv_shift = 9},
              {Element::u8, Combine::max, {}, false}, 30'001);
        check({.shape = Shape::lines, .blocks = blocks, .in_place = true},
              {Element::bf16, Combine::avg, {}, false}, 30'003);
    }
    if (GetParam() == 4)
        check({.shape = Shape::lines, .blocks = 64}, {Element::i64, Combine::sum, {}, false}, 1 << 17);
}

// The same of reductions whose results go to one rank.
TEST_P(Reductions, LargeInLinesToOne) {
    const unsigned n = GetParam();
    for (const Element element : {Element::u8, Element::bf16, Element::f32}) {
        const Reduced reduced{element, Combine::sum, {}, false};
        const unsigned shift = element == Element::u8 ? 3 : 0;
        for (const unsigned blocks : {1u, 6u})
            for (const bool in_place : {false, true}) {
                const How how{
                    .shape = Shape::lines, .blocks = blocks, .send_shift = shift, .in_place = in_place};
                SCOPED_TRACE(to_string(how));
                const auto inputs = some_inputs(reduced, 4801 * n, n, blocks);
                EXPECT_EQ(wrong_element(element, Combine::sum, inputs, {},
                                        reduce(crew(), how, reduced, n - 1, inputs)),
                          "");
                Values joined;
                for (const Values& output : reduce_scatter(crew(), how, reduced, inputs))
                    joined.insert(joined.end(), output.begin(), output.end());
                EXPECT_EQ(wrong_element(element, Combine::sum, inputs, {}, joined), "");
            }
    }
}

// Sums that travel in 4 bytes and elements of 1 and 2; slots that are used again and again.
TEST_P(Reductions, LargeAroundTheRing) {
    const std::uint64_t max = protocol::ArenaLayout{GetParam()}.ring_piece_bytes() * 11;
    for (const unsigned blocks : {1u, 3u})
        for (const bool in_place : {false, true}) {
            const How how{.shape = Shape::ring, .blocks = blocks, .in_place = in_place};
            check(how, {Element::i32, Combine::sum, {}, false}, max / 4 + 3);
            check(how, {Element::bf16, Combine::avg, {}, false}, max / 4 + 1);
            check(how, {Element::f8_e4m3, Combine::max, {}, false}, max / 4 + 7);
            check(how, {Element::f64, Combine::scaled_sum, some_scales(GetParam()), false}, max / 8 + 1);
        }
}

TEST_P(Reductions, ReduceScatter) {
    const unsigned n = GetParam();
    for (const std::uint64_t count : {1, 5, 130}) {
        for (How how : all_ways(Element::f16)) {
            if (is_for_all_reduce_alone(how)) continue;
            for (const bool in_place : {false, true}) {
                how.in_place = in_place;
                SCOPED_TRACE(to_string(how));
                const Reduced reduced{Element::f16, Combine::avg, {}, false};
                const auto inputs = some_inputs(reduced, count * n, n, 3);
                const auto outputs = reduce_scatter(crew(), how, reduced, inputs);
                Values joined;
                for (const Values& output : outputs)
                    joined.insert(joined.end(), output.begin(), output.end());
                EXPECT_EQ(wrong_element(reduced.element, reduced.combine, inputs, {}, joined), "");
            }
        }
    }
}

TEST_P(Reductions, ReduceToEachRoot) {
    const unsigned n = GetParam();
    const Reduced reduced{Element::f32, Combine::sum, {}, false};
    const auto inputs = some_inputs(reduced, 99, n, 4);
    for (unsigned root = 0; root < n; ++root) {
        for (How how : all_ways(Element::f32)) {
            if (is_for_all_reduce_alone(how)) continue;
            SCOPED_TRACE(to_string(how));
            EXPECT_EQ(wrong_element(reduced.element, reduced.combine, inputs, {},
                                    reduce(crew(), how, reduced, root, inputs)),
                      "");
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Reductions, testing::Values(1u, 2u, 3u, 4u, 5u, 8u, 16u));

}  // namespace
}  // namespace sidestep::collective_seat::reduction
