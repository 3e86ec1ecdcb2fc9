// The factor of a scaled sum in every type.
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>
#include <sidestep/collective.hpp>

namespace sidestep {
namespace {

template <typename Value>
Value scale(double factor, Dtype dtype) {
    const Reduction reduction = Reduction::scaled(factor, dtype);
    EXPECT_EQ(reduction.op, ReduceOp::scaled_sum);
    EXPECT_EQ(reduction.device_scale, nullptr);
    Value value;
    std::memcpy(&value, reduction.scale.data(), sizeof value);
    for (std::size_t at = sizeof value; at < reduction.scale.size(); ++at)
        EXPECT_EQ(reduction.scale[at], std::byte{0});
    return value;
}

// What a code of 16 or 8 bits means, by the definition of the formats.
double value_of(unsigned code, int exponent_bits, int mantissa_bits) {
    const unsigned exponent = code >> mantissa_bits & ((1u << exponent_bits) - 1);
    const unsigned mantissa = code & ((1u << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = code >> (exponent_bits + mantissa_bits) ? -1 : 1;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign *
           std::ldexp((1u << mantissa_bits) + mantissa, static_cast<int>(exponent) - bias - mantissa_bits);
}

struct Format {
    Dtype dtype;
    int exponent_bits, mantissa_bits;
    unsigned finite;  // codes below are finite
    bool byte;
};
constexpr Format formats[] = {{Dtype::f16, 5, 10, 0x7c00, false},
                              {Dtype::bf16, 8, 7, 0x7f80, false},
                              {Dtype::f8_e4m3, 4, 3, 0x7f, true},
                              {Dtype::f8_e5m2, 5, 2, 0x7c, true}};

unsigned code_of(double factor, const Format& format) {
    return format.byte ? scale<std::uint8_t>(factor, format.dtype)
                       : scale<std::uint16_t>(factor, format.dtype);
}

TEST(Scaled, EverySmallFloatIsItself) {
    for (const Format& format : formats)
        for (unsigned code = 0; code < format.finite; ++code) {
            const double value = value_of(code, format.exponent_bits, format.mantissa_bits);
            ASSERT_EQ(code_of(value, format), code) << to_string(format.dtype);
            const unsigned sign = 1u << (format.exponent_bits + format.mantissa_bits);
            ASSERT_EQ(code_of(-value, format), sign | code) << to_string(format.dtype);
        }
}

TEST(Scaled, WhatLiesBetweenGoesToTheNearestAndTiesToEven) {
    for (const Format& format : formats)
        for (unsigned code = 0; code + 1 < format.finite; ++code) {
            const double low = value_of(code, format.exponent_bits, format.mantissa_bits);
            const double high = value_of(code + 1, format.exponent_bits, format.mantissa_bits);
            ASSERT_EQ(code_of(low + (high - low) * 0.49, format), code) << to_string(format.dtype);
            ASSERT_EQ(code_of(low + (high - low) * 0.51, format), code + 1) << to_string(format.dtype);
            ASSERT_EQ(code_of(low + (high - low) * 0.5, format), code % 2 == 0 ? code : code + 1);
        }
}

TEST(Scaled, BeyondTheLargest) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    for (const double far : {1e300, infinity}) {
        EXPECT_EQ(scale<std::uint16_t>(far, Dtype::f16), 0x7c00);
        EXPECT_EQ(scale<std::uint16_t>(-far, Dtype::bf16), 0xff80);
        EXPECT_EQ(scale<std::uint8_t>(far, Dtype::f8_e4m3), 0x7e) << "448: the type has no infinity";
        EXPECT_EQ(scale<std::uint8_t>(far, Dtype::f8_e5m2), 0x7c);
    }
    EXPECT_EQ(scale<std::uint16_t>(65519, Dtype::f16), 0x7bff);
    EXPECT_EQ(scale<std::uint16_t>(65520, Dtype::f16), 0x7c00);
    EXPECT_EQ(scale<std::uint16_t>(std::nan(""), Dtype::f16) & 0x7fff, 0x7e00);
    EXPECT_EQ(scale<std::uint8_t>(std::nan(""), Dtype::f8_e4m3) & 0x7f, 0x7f);
}

TEST(Scaled, WholeFloatsAndIntegers) {
    EXPECT_EQ(scale<float>(0.1, Dtype::f32), 0.1f);
    EXPECT_EQ(scale<double>(0.1, Dtype::f64), 0.1);
    EXPECT_EQ(scale<std::int8_t>(-3.6, Dtype::i8), -4);
    EXPECT_EQ(scale<std::int8_t>(-1e9, Dtype::i8), -128);
    EXPECT_EQ(scale<std::uint8_t>(300, Dtype::u8), 255);
    EXPECT_EQ(scale<std::uint8_t>(-7, Dtype::boolean), 0);
    EXPECT_EQ(scale<std::int32_t>(2147483647.4, Dtype::i32), 2147483647);
    EXPECT_EQ(scale<std::uint32_t>(4e9, Dtype::u32), 4000000000u);
    EXPECT_EQ(scale<std::int64_t>(1e30, Dtype::i64), std::numeric_limits<std::int64_t>::max());
    EXPECT_EQ(scale<std::int64_t>(-1e30, Dtype::i64), std::numeric_limits<std::int64_t>::min());
    EXPECT_EQ(scale<std::uint64_t>(1e30, Dtype::u64), std::numeric_limits<std::uint64_t>::max());
    EXPECT_EQ(scale<std::uint64_t>(1 << 20, Dtype::u64), 1u << 20);
    EXPECT_EQ(scale<std::int32_t>(std::nan(""), Dtype::i32), 0);
}

}  // namespace
}  // namespace sidestep
