#include "collective/coalesce.hpp"

#include <gtest/gtest.h>

#include "choosing.hpp"

namespace sidestep::collective {
namespace {

using protocol::Combine;
using protocol::Element;

Operation f32(Collective collective, std::uint64_t count) {
    return reduction_of(collective, count * 4, Element::f32);
}

// How many calls each operation is made of, where a call alone takes 5 us.
std::vector<std::size_t> groups_of(std::vector<Operation> calls, int ranks = 2, double alone_us = 5) {
    std::vector<std::size_t> groups;
    for (const Operation& one :
         coalesce(std::move(calls), group_of(ranks), [=](const Operation&) { return alone_us; }))
        groups.push_back(std::max<std::size_t>(one.coalesced.size(), 1));
    return groups;
}

struct Case {
    const char* name;
    std::vector<Operation> calls;
    std::vector<std::size_t> groups;
    int ranks = 2;
    double alone_us = 5;
};

std::vector<Case> cases() {
    const auto sum = [](std::uint64_t count) { return f32(Collective::all_reduce, count); };
    Operation largest = sum(8);
    largest.combine = Combine::max;
    Operation scaled = sum(8);
    scaled.combine = Combine::scaled_sum;
    Operation bytes = operation_of(Collective::all_reduce, 8);
    const std::uint64_t held = protocol::ArenaLayout{2}.packet_payload() / 4;
    return {
        {"one call", {sum(8)}, {1}},
        {"of all sizes", {sum(1), sum(1000), sum(3)}, {3}},
        {"sixteen at most", std::vector<Operation>(33, sum(8)), {16, 16, 1}},
        {"in their order", {sum(8), sum(8), f32(Collective::all_gather, 8), sum(8), sum(8)}, {2, 1, 2}},
        {"another type", {sum(8), bytes, bytes}, {1, 2}},
        {"another reduction", {sum(8), largest, largest}, {1, 2}},
        {"factors are each rank's own", {scaled, scaled}, {1, 1}},
        {"empty ones alone", {sum(8), sum(0), sum(8), sum(8)}, {1, 1, 2}},
        {"what the arena holds", {sum(held / 2), sum(held / 2), sum(1)}, {2, 1}, 2, 1000},
        {"too large", {sum(held + 1), sum(8), sum(8)}, {1, 2}},
        {"no roots", {f32(Collective::reduce, 8), f32(Collective::reduce, 8)}, {1, 1}},
        {"nor barriers", {Operation{}, Operation{}}, {1, 1}},
        {"of the only rank", {sum(8), sum(8)}, {1, 1}, 1},
        {"where it is not quicker", {sum(8), sum(8)}, {1, 1}, 2, 0.1},
        {"nothing", {}, {}},
    };
}

TEST(Coalesce, NeighboursOfOneKind) {
    for (const Case& one : cases())
        EXPECT_EQ(groups_of(one.calls, one.ranks, one.alone_us), one.groups) << one.name;
}

TEST(Coalesce, RanksThatCallOtherSizesSeeIt) {
    const auto signature = [](std::vector<std::uint64_t> counts) {
        std::vector<Operation> calls;
        for (const std::uint64_t count : counts) calls.push_back(f32(Collective::all_reduce, count));
        const auto all = coalesce(std::move(calls), group_of(4), [](const Operation&) { return 5.0; });
        EXPECT_EQ(all.size(), 1u);
        return signature_of(all.front());
    };
    EXPECT_EQ(signature({10, 20}), signature({10, 20}));
    EXPECT_NE(signature({10, 20}), signature({20, 10}));
    EXPECT_NE(signature({10, 20}), signature({10, 10, 10}));
    EXPECT_NE(signature({10, 20}), signature_of(f32(Collective::all_reduce, 30)));
}

TEST(Coalesce, SaysHowManyCalls) {
    const auto all = coalesce({f32(Collective::all_reduce, 10), f32(Collective::all_reduce, 20)}, group_of(4),
                              [](const Operation&) { return 5.0; });
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(describe(all.front()), "all_reduce 30 f32 sum of 2 calls");
}

}  // namespace
}  // namespace sidestep::collective
