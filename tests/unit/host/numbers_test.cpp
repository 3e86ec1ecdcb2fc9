// Conversions of small floating types, and the arithmetic over them, bit for bit.
#include "backends/host/collective/numbers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backends/host/collective/combine.hpp"
#include "tests/unit/collective_seat/values.hpp"

namespace sidestep::backends::host {
namespace {

using collective_seat::decode;
using collective_seat::encode;
using protocol::Combine;
using protocol::Element;

// A format under test, and its element for the arithmetic in double precision that it is held against.
template <typename Format, typename Code, Element of>
struct Tested {
    static constexpr Element element = of;
    static constexpr unsigned codes = 1u << (sizeof(Code) * 8);
    static float to_float(unsigned code) { return Format::to_float(static_cast<Code>(code)); }
    static unsigned from_float(float number) { return Format::from_float(number); }
    static double expected(unsigned code) {
        const auto exact = static_cast<Code>(code);
        return decode(of, reinterpret_cast<const char*>(&exact));
    }
    static unsigned nearest(double number) {
        Code code = 0;
        encode(of, number, reinterpret_cast<char*>(&code));
        return code;
    }
};

template <typename T>
class Numbers : public testing::Test {};
using Formats =
    testing::Types<Tested<F16, std::uint16_t, Element::f16>, Tested<BF16, std::uint16_t, Element::bf16>,
                   Tested<F8E4M3, std::uint8_t, Element::f8_e4m3>,
                   Tested<F8E5M2, std::uint8_t, Element::f8_e5m2>>;
TYPED_TEST_SUITE(Numbers, Formats);

TYPED_TEST(Numbers, EveryCodeThereAndBack) {
    for (unsigned code = 0; code < TypeParam::codes; ++code) {
        const float number = TypeParam::to_float(code);
        const double expected = TypeParam::expected(code);
        if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(number)) << code;
            ASSERT_TRUE(std::isnan(TypeParam::to_float(TypeParam::from_float(number)))) << code;
            continue;
        }
        ASSERT_EQ(static_cast<double>(number), expected) << code;
        ASSERT_EQ(std::signbit(number), std::signbit(expected)) << code;
        if (std::isfinite(number)) {
            ASSERT_EQ(TypeParam::from_float(number), code);
        }
    }
}

// Half-way between two neighbours, and one float to either side.
TYPED_TEST(Numbers, RoundsToTheNearestAndTiesToEven) {
    for (unsigned code = 0; code + 1 < TypeParam::codes / 2; ++code) {
        const double low = TypeParam::expected(code);
        const double high = TypeParam::expected(code + 1);
        if (!std::isfinite(low) || !std::isfinite(high)) break;
        const auto middle = static_cast<float>((low + high) / 2);
        for (const float number : {middle, std::nextafterf(middle, 0), std::nextafterf(middle, INFINITY)}) {
            ASSERT_EQ(TypeParam::from_float(number), TypeParam::nearest(static_cast<double>(number)))
                << number;
            ASSERT_EQ(TypeParam::from_float(-number), TypeParam::nearest(-static_cast<double>(number)))
                << number;
        }
    }
}

TYPED_TEST(Numbers, AnyFloatWithinReach) {
    std::mt19937 random(3);
    const double largest = TypeParam::expected(TypeParam::element == Element::bf16      ? 0x7f7f
                                               : TypeParam::element == Element::f16     ? 0x7bff
                                               : TypeParam::element == Element::f8_e4m3 ? 0x7e
                                                                                        : 0x7b);
    for (int i = 0; i < 200'000; ++i) {
        const float number = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
        if (!(std::fabs(static_cast<double>(number)) <= largest)) continue;
        ASSERT_EQ(TypeParam::from_float(number), TypeParam::nearest(static_cast<double>(number))) << number;
    }
}

TEST(NumbersBeyond, InfinityOfSixteenBits) {
    EXPECT_EQ(F16::from_float(65519.99f), 0x7bff);
    EXPECT_EQ(F16::from_float(65520.0f), 0x7c00);
    EXPECT_EQ(F16::from_float(-1e30f), 0xfc00);
    EXPECT_EQ(F16::from_float(INFINITY), 0x7c00);
    EXPECT_EQ(BF16::from_float(3.4e38f), 0x7f80);
    EXPECT_EQ(BF16::from_float(-INFINITY), 0xff80);
}

TEST(NumbersBeyond, TheLargestFiniteNumberOfEightBits) {
    for (const float large : {449.0f, 464.0f, 480.0f, 1e30f, INFINITY}) {
        EXPECT_EQ(F8E4M3::from_float(large), 0x7e) << large;
        EXPECT_EQ(F8E4M3::from_float(-large), 0xfe) << large;
    }
    for (const float large : {57345.0f, 61440.0f, 65536.0f, 1e30f, INFINITY}) {
        EXPECT_EQ(F8E5M2::from_float(large), 0x7b) << large;
        EXPECT_EQ(F8E5M2::from_float(-large), 0xfb) << large;
    }
    EXPECT_EQ(F8E4M3::to_float(0x7e), 448.0f);
    EXPECT_EQ(F8E5M2::to_float(0x7b), 57344.0f);
    EXPECT_TRUE(std::isinf(F8E5M2::to_float(0x7c)));
}

TEST(NumbersBeyond, NaN) {
    const float nan = std::nanf("");
    EXPECT_EQ(F16::from_float(nan), 0x7fff);
    EXPECT_EQ(BF16::from_float(-nan), 0x7fff);
    EXPECT_EQ(F8E4M3::from_float(nan), 0x7f);
    EXPECT_EQ(F8E5M2::from_float(nan), 0x7f);
}

template <typename T>
std::vector<T> combined(Element element, Combine how, const std::vector<std::vector<T>>& inputs,
                        const std::vector<T>& scales = {}) {
    Reduction reduction{element, how, static_cast<unsigned>(inputs.size()), {}};
    std::vector<const char*> sources;
    std::vector<unsigned> numbers;
    for (unsigned rank = 0; rank < inputs.size(); ++rank) {
        sources.push_back(reinterpret_cast<const char*>(inputs[rank].data()));
        numbers.push_back(rank);
        if (!scales.empty()) std::memcpy(&reduction.scales[rank], &scales[rank], sizeof(T));
    }
    std::vector<T> out(inputs[0].size());
    combine(reduction, sources, numbers, reinterpret_cast<char*>(out.data()), out.size());
    return out;
}

// 2048 + 1 + 1 in f16: rounded after each step it would stay at 2048, rounded once it is 2050.
TEST(Combining, SmallFloatsAreRoundedOnce) {
    using Codes = std::vector<std::uint16_t>;
    const std::vector<Codes> inputs{{F16::from_float(2048)}, {F16::from_float(1)}, {F16::from_float(1)}};
    EXPECT_EQ(combined(Element::f16, Combine::sum, inputs), Codes{F16::from_float(2050)});
}

// (big + -big) + small differs from big + (-big + small).
TEST(Combining, InTheOrderOfRanks) {
    EXPECT_EQ(combined<float>(Element::f32, Combine::sum, {{1e8f}, {-1e8f}, {1}}), std::vector<float>{1});
    EXPECT_EQ(combined<float>(Element::f32, Combine::sum, {{1}, {1e8f}, {-1e8f}}), std::vector<float>{0});
}

// The product rounded, then the sum rounded: a fused operation would leave -2^-46.
TEST(Combining, ScaledInputsAreRoundedBeforeTheyAreAdded) {
    const float odd = 1 + std::ldexp(1.0f, -23);
    const float square = odd * odd;
    EXPECT_EQ(combined<float>(Element::f32, Combine::scaled_sum, {{-square}, {odd}}, {1, odd}),
              std::vector<float>{0});
}

TEST(Combining, IntegersWrapInTheirOwnType) {
    EXPECT_EQ(combined<std::int8_t>(Element::i8, Combine::sum, {{127}, {1}}), std::vector<std::int8_t>{-128});
    EXPECT_EQ(combined<std::uint8_t>(Element::u8, Combine::prod, {{200}, {2}}),
              std::vector<std::uint8_t>{144});
    EXPECT_EQ(combined<std::int32_t>(Element::i32, Combine::sum, {{INT32_MAX}, {1}}),
              std::vector<std::int32_t>{INT32_MIN});
    EXPECT_EQ(combined<std::int64_t>(Element::i64, Combine::prod, {{INT64_MIN}, {-1}}),
              std::vector<std::int64_t>{INT64_MIN});
    EXPECT_EQ(combined<std::int8_t>(Element::i8, Combine::scaled_sum, {{100}, {1}}, {2, 3}),
              std::vector<std::int8_t>{-53});
}

TEST(Combining, MeansOfIntegersGoTowardsZero) {
    EXPECT_EQ(combined<std::int32_t>(Element::i32, Combine::avg, {{-3}, {-4}}),
              std::vector<std::int32_t>{-3});
    EXPECT_EQ(combined<std::uint8_t>(Element::u8, Combine::avg, {{200}, {100}}),
              std::vector<std::uint8_t>{22});
}

TEST(Combining, LeastAndGreatest) {
    EXPECT_EQ(combined<std::int8_t>(Element::i8, Combine::min, {{-1, 5}, {1, 3}}),
              (std::vector<std::int8_t>{-1, 3}));
    EXPECT_EQ(combined<std::uint8_t>(Element::u8, Combine::max, {{255, 5}, {1, 9}}),
              (std::vector<std::uint8_t>{255, 9}));
}

TEST(Combining, ANaNLosesToANumber) {
    const float nan = std::nanf("");
    for (const Combine how : {Combine::min, Combine::max}) {
        EXPECT_EQ(combined<float>(Element::f32, how, {{nan, 2}, {2, nan}}), (std::vector<float>{2, 2}));
    }
    EXPECT_TRUE(std::isnan(combined<float>(Element::f32, Combine::sum, {{nan}, {2}})[0]));
}

}  // namespace
}  // namespace sidestep::backends::host
