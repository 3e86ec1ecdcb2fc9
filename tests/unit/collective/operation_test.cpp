// One call by itself: its types, what makes no sense, its signature and its words.
#include "collective/operation.hpp"

#include <set>

#include <gtest/gtest.h>

namespace sidestep::collective {
namespace {

using protocol::Combine;
using protocol::Element;

struct CheckOf : testing::Test {
    std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(4096);

    Operation of(Collective collective, std::uint64_t count = 8) {
        Operation operation;
        operation.collective = collective;
        operation.send = memory.data();
        operation.recv = memory.data() + 2048;
        operation.count = count;
        operation.element = Element::f32;
        operation.combine = combines(collective) ? Combine::sum : Combine::none;
        return operation;
    }
    static std::string refusal(const Operation& operation, int rank = 0, int ranks = 4) {
        const auto checked = check(operation, rank, ranks);
        if (checked.ok()) return {};
        EXPECT_EQ(checked.error().code, ErrorCode::invalid_argument);
        EXPECT_EQ(checked.error().where, to_string(operation.collective));
        return checked.error().message;
    }
    static void expect_refused(const Operation& operation, const std::string& words, int rank = 0) {
        const std::string message = refusal(operation, rank);
        EXPECT_NE(message.find(words), std::string::npos)
            << "\"" << message << "\" instead of \"" << words << "\"";
    }
};

TEST(ElementOf, TakesTheTypesThatCollectivesCombine) {
    const std::pair<Dtype, Element> known[] = {
        {Dtype::boolean, Element::u8},     {Dtype::u8, Element::u8},   {Dtype::i8, Element::i8},
        {Dtype::i32, Element::i32},        {Dtype::u32, Element::u32}, {Dtype::i64, Element::i64},
        {Dtype::u64, Element::u64},        {Dtype::f16, Element::f16}, {Dtype::bf16, Element::bf16},
        {Dtype::f32, Element::f32},        {Dtype::f64, Element::f64}, {Dtype::f8_e4m3, Element::f8_e4m3},
        {Dtype::f8_e5m2, Element::f8_e5m2}};
    for (const auto& [dtype, element] : known)
        for (const bool combined : {true, false})
            EXPECT_EQ(*element_of(dtype, combined), element) << to_string(dtype);
}

TEST(ElementOf, MovesWhatItDoesNotCombine) {
    for (const Dtype dtype : {Dtype::i16, Dtype::u16, Dtype::c64, Dtype::f8_e8m0, Dtype::f8_e4m3fnuz}) {
        ASSERT_TRUE(element_of(dtype, false).ok());
        EXPECT_EQ(static_cast<int>(size_of(*element_of(dtype, false)) * 8), bits_of(dtype));
        const auto refused = element_of(dtype, true);
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.error().message.find(to_string(dtype)), std::string::npos);
    }
    for (const Dtype dtype : {Dtype::f4, Dtype::f6_e2m3, Dtype::f6_e3m2, Dtype::other})
        EXPECT_FALSE(element_of(dtype, false).ok()) << to_string(dtype);
}

TEST_F(CheckOf, RanksAndRoots) {
    EXPECT_EQ(refusal(of(Collective::all_reduce)), "");
    EXPECT_EQ(refusal(of(Collective::all_reduce), 4, 4), "rank 4 of a group of 4");
    EXPECT_EQ(refusal(of(Collective::all_reduce), 0, 17), "a group of 17 ranks: from 1 to 16 are possible");
    for (const int root : {-1, 4}) {
        Operation operation = of(Collective::broadcast);
        operation.root = root;
        EXPECT_EQ(refusal(operation),
                  root < 0 ? "root -1 in a group of 4 ranks" : "root 4 in a group of 4 ranks");
    }
    Operation rootless = of(Collective::all_reduce);
    rootless.root = 99;
    EXPECT_EQ(refusal(rootless), "") << "nobody looks at the root of an all_reduce";
}

TEST_F(CheckOf, HowElementsAreCombined) {
    Operation operation = of(Collective::reduce);
    operation.combine = Combine::none;
    expect_refused(operation, "no reduction operator");
    operation = of(Collective::broadcast);
    operation.combine = Combine::max;
    expect_refused(operation, "combines nothing, but was given max");
    operation.combine = Combine::none;
    operation.element = static_cast<Element>(99);
    expect_refused(operation, "element type");
}

TEST_F(CheckOf, NullWhereBytesAreAndNowhereElse) {
    Operation operation = of(Collective::all_reduce);
    operation.send = nullptr;
    expect_refused(operation, "the send buffer is null, but 32 B are sent");
    operation.count = 0;
    EXPECT_EQ(refusal(operation), "");
    operation = of(Collective::all_gather);
    operation.recv = nullptr;
    expect_refused(operation, "the receive buffer is null, but 128 B are received");
    // Ranks other than the root.
    for (const Collective collective : {Collective::broadcast, Collective::scatter}) {
        operation = of(collective);
        operation.send = nullptr;
        EXPECT_EQ(refusal(operation, 1), "");
        expect_refused(operation, "send buffer is null", 0);
    }
    for (const Collective collective : {Collective::reduce, Collective::gather}) {
        operation = of(collective);
        operation.recv = nullptr;
        EXPECT_EQ(refusal(operation, 1), "");
        expect_refused(operation, "receive buffer is null", 0);
    }
}

TEST_F(CheckOf, OverlapsButForWhatIsInPlace) {
    constexpr std::ptrdiff_t block = 32;
    struct {
        Collective collective;
        int rank;
        std::ptrdiff_t recv_from_send;
    } const in_place[] = {{Collective::all_reduce, 1, 0},      {Collective::broadcast, 2, 0},
                          {Collective::reduce, 2, 0},          {Collective::all_gather, 3, -96},
                          {Collective::reduce_scatter, 3, 96}, {Collective::gather, 2, -64},
                          {Collective::scatter, 2, 2 * block}, {Collective::all_to_all, 1, 0}};
    for (const auto& one : in_place) {
        Operation operation = of(one.collective);
        operation.root = 2;
        std::uint8_t* send = memory.data() + 1024;
        operation.send = send;
        operation.recv = send + one.recv_from_send;
        EXPECT_EQ(refusal(operation, one.rank), "") << to_string(one.collective);
        for (const std::ptrdiff_t shift : {-4, 4}) {
            operation.recv = send + one.recv_from_send + shift;
            const auto checked = check(operation, one.rank, 4);
            ASSERT_FALSE(checked.ok()) << to_string(one.collective);
            EXPECT_EQ(checked.error().message, "send and receive buffer overlap, and not as in place");
            EXPECT_NE(checked.error().hint.find("=="), std::string::npos);
        }
        // Ending where the other one begins.
        operation.recv = send + block * 4;
        EXPECT_EQ(refusal(operation, one.rank), "") << to_string(one.collective);
    }
    // The root alone looks at send: what others give is no overlap.
    Operation operation = of(Collective::broadcast);
    operation.root = 2;
    operation.recv = memory.data() + 4;
    EXPECT_EQ(refusal(operation, 1), "");
    expect_refused(operation, "overlap", 2);
}

TEST_F(CheckOf, CountsWhoseBytesOverflow) {
    for (const std::uint64_t count :
         {~std::uint64_t{0}, std::uint64_t{1} << 62, (std::uint64_t{1} << 43) + 1})
        expect_refused(of(Collective::all_gather, count), "more bytes than an address space has");
    Operation operation = of(Collective::all_gather, std::uint64_t{1} << 33);
    operation.recv = reinterpret_cast<void*>(std::uintptr_t{1} << 45);
    EXPECT_EQ(refusal(operation), "") << "more than 2^32 bytes are many, but possible";
}

struct CheckOfLists : CheckOf {
    std::uint64_t send_counts[4] = {1, 2, 3, 4};
    std::uint64_t send_offsets[4] = {0, 1, 3, 6};
    std::uint64_t recv_counts[4] = {1, 0, 5, 5};
    std::uint64_t recv_offsets[4] = {0, 999, 1, 6};

    Operation of_lists() {
        Operation operation = of(Collective::all_to_all_v);
        operation.blocks = {send_counts, send_offsets, recv_counts, recv_offsets, false};
        return operation;
    }
};

TEST_F(CheckOfLists, TakesBlocksAnywhere) {
    EXPECT_EQ(refusal(of_lists()), "");
}

TEST_F(CheckOfLists, RefusesListsThatMakeNoSense) {
    Operation operation = of_lists();
    operation.blocks.recv_offsets = nullptr;
    expect_refused(operation, "one of the four lists of blocks is null");
    operation = of_lists();
    recv_offsets[3] = 5;
    expect_refused(operation, "the receive blocks of ranks 2 and 3 overlap");
    recv_offsets[3] = 6;
    recv_counts[0] = 2;
    recv_offsets[0] = 100;
    expect_refused(operation, "rank 0 sends 1 elements to itself, but receives 2");
    recv_counts[0] = 1;
    send_offsets[2] = ~std::uint64_t{0};
    expect_refused(operation, "the send block of rank 2");
    send_offsets[2] = 3;
    operation.recv = nullptr;
    expect_refused(operation, "the receive buffer is null, but the block of rank 0 has 1 elements");
    operation.recv = memory.data();
    expect_refused(operation, "not possible in place");
    // In GPU memory nobody can look.
    operation.blocks.on_device = true;
    EXPECT_EQ(refusal(operation), "");
}

TEST_F(CheckOf, GroupsOfSendsAndReceives) {
    Operation operation;
    operation.collective = Collective::send_recv;
    EXPECT_EQ(refusal(operation), "");
    operation.pairs = {{true, 4, memory.data(), 8}};
    expect_refused(operation, "send to rank 4 in a group of 4 ranks");
    operation.pairs = {{false, -1, memory.data(), 8}};
    expect_refused(operation, "receive from rank -1");
    operation.pairs = {{false, 1, nullptr, 8}};
    expect_refused(operation, "receive from rank 1: the buffer is null, but 8 B are moved");
    operation.pairs = {{true, 1, memory.data(), ~std::uint64_t{0}}};
    expect_refused(operation, "more than an address space has");
    operation.pairs = {{true, 0, memory.data(), 8}};
    expect_refused(operation, "rank 0 sends 1 blocks to itself, but receives 0");
    operation.pairs.push_back({false, 0, memory.data() + 64, 4});
    expect_refused(operation, "rank 0 sends 8 bytes to itself, but receives 4");
    operation.pairs.back().bytes = 8;
    EXPECT_EQ(refusal(operation), "");
}

TEST_F(CheckOf, SignaturesDifferWhereRanksMustNot) {
    std::set<std::uint32_t> seen;
    std::size_t made = 0;
    const auto add = [&](const Operation& operation) {
        ++made;
        EXPECT_NE(signature_of(operation), 0u);
        EXPECT_TRUE(seen.insert(signature_of(operation)).second) << describe(operation);
    };
    for (const Collective collective :
         {Collective::all_reduce, Collective::broadcast, Collective::reduce, Collective::all_gather,
          Collective::reduce_scatter, Collective::all_to_all, Collective::gather, Collective::scatter})
        for (const std::uint64_t count : {1u, 2u, 256u, 257u})
            for (const Element element : {Element::f32, Element::bf16, Element::u32}) {
                Operation operation = of(collective, count);
                operation.element = element;
                add(operation);
                if (has_root(collective)) add((operation.root = 1, operation));
                if (combines(collective)) add((operation.combine = Combine::max, operation));
            }
    add(of(Collective::barrier));
    add(of(Collective::send_recv));
    add(of(Collective::all_to_all_v));
    EXPECT_EQ(seen.size(), made);
}

TEST_F(CheckOf, SignaturesAgreeWhereRanksMayDiffer) {
    Operation one = of(Collective::all_reduce), other = one;
    other.send = other.recv = nullptr;
    other.root = 3;
    other.scale = 5;
    EXPECT_EQ(signature_of(one), signature_of(other));
    one = of(Collective::send_recv), other = one;
    other.pairs = {{true, 1, nullptr, 8}};
    other.count = 77;
    EXPECT_EQ(signature_of(one), signature_of(other));
    one = of(Collective::all_to_all_v), other = one;
    other.count = 77;
    EXPECT_EQ(signature_of(one), signature_of(other));
    other.element = Element::u8;
    EXPECT_NE(signature_of(one), signature_of(other));
}

// FNV-1a over the numbers that have to agree, eight bytes each; worked out apart from the code.
TEST_F(CheckOf, SignaturesAreFnv1a) {
    EXPECT_EQ(signature_of(of(Collective::barrier)), 0x41af28afu);
    EXPECT_EQ(signature_of(of(Collective::all_reduce, 8)), 0x6c8cc5cbu);
}

TEST_F(CheckOf, Words) {
    Operation operation = of(Collective::all_reduce, 1048576);
    EXPECT_EQ(describe(operation), "all_reduce 1048576 f32 sum");
    operation = of(Collective::broadcast, 3);
    operation.element = Element::bf16;
    operation.root = 2;
    EXPECT_EQ(describe(operation), "broadcast 3 bf16 from rank 2");
    operation.collective = Collective::reduce;
    operation.combine = Combine::scaled_sum;
    EXPECT_EQ(describe(operation), "reduce 3 bf16 scaled_sum to rank 2");
    operation.collective = Collective::gather;
    EXPECT_EQ(describe(operation), "gather 3 bf16 to rank 2");
    operation.collective = Collective::scatter;
    EXPECT_EQ(describe(operation), "scatter 3 bf16 from rank 2");
    EXPECT_EQ(describe(of(Collective::all_gather)), "all_gather 8 f32");
    EXPECT_EQ(describe(of(Collective::all_to_all_v)), "all_to_all_v f32");
    EXPECT_EQ(describe(of(Collective::barrier)), "barrier");
    operation = of(Collective::send_recv);
    EXPECT_EQ(describe(operation), "send_recv with nobody");
    operation.pairs = {
        {true, 3, memory.data(), 8}, {false, 1, memory.data(), 8}, {false, 3, memory.data(), 8}};
    EXPECT_EQ(describe(operation), "send_recv with ranks 1, 3");
    operation.pairs.resize(1);
    EXPECT_EQ(describe(operation), "send_recv with rank 3");
}

}  // namespace
}  // namespace sidestep::collective
