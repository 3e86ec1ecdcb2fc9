// The twelve element types in device code: how they are widened for combining, and rounded once at the end.
#pragma once

#include "backends/cuda/collective/memory.cuh"

namespace sidestep::backends::cuda {

// Bits: as stored. Wide: as combined.
template <Element element>
struct Form;

template <typename Integer, typename Unsigned>
struct IntegerForm {
    using Bits = Unsigned;
    using Wide = Integer;
    static __device__ Wide widen(Bits bits) { return static_cast<Wide>(bits); }
    static __device__ Bits narrow(Wide value) { return static_cast<Bits>(value); }
    // Integers wrap: arithmetic of the unsigned type, of 32 bits at least.
    static __device__ Wide add(Wide a, Wide b) {
        return static_cast<Wide>(static_cast<Bits>(a) + static_cast<Bits>(b));
    }
    static __device__ Wide multiply(Wide a, Wide b) {
        return static_cast<Wide>(uint64_t{static_cast<Bits>(a)} * uint64_t{static_cast<Bits>(b)});
    }
    static __device__ Wide least(Wide a, Wide b) { return b < a ? b : a; }
    static __device__ Wide most(Wide a, Wide b) { return a < b ? b : a; }
    static __device__ Wide divide(Wide a, unsigned ranks) {
        return static_cast<Wide>(a / static_cast<Wide>(ranks));
    }
};
template <>
struct Form<Element::i8> : IntegerForm<int8_t, uint8_t> {};
template <>
struct Form<Element::u8> : IntegerForm<uint8_t, uint8_t> {};
template <>
struct Form<Element::i32> : IntegerForm<int32_t, uint32_t> {};
template <>
struct Form<Element::u32> : IntegerForm<uint32_t, uint32_t> {};
template <>
struct Form<Element::i64> : IntegerForm<int64_t, uint64_t> {};
template <>
struct Form<Element::u64> : IntegerForm<uint64_t, uint64_t> {};

// Each operation rounds by itself: a product and a sum must not become one fused operation.
struct FloatArithmetic {
    using Wide = float;
    static __device__ Wide add(Wide a, Wide b) { return __fadd_rn(a, b); }
    static __device__ Wide multiply(Wide a, Wide b) { return __fmul_rn(a, b); }
    static __device__ Wide least(Wide a, Wide b) { return fminf(a, b); }
    static __device__ Wide most(Wide a, Wide b) { return fmaxf(a, b); }
    static __device__ Wide divide(Wide a, unsigned ranks) { return __fdiv_rn(a, static_cast<float>(ranks)); }
};

template <>
struct Form<Element::f32> : FloatArithmetic {
    using Bits = uint32_t;
    static __device__ Wide widen(Bits bits) { return __uint_as_float(bits); }
    static __device__ Bits narrow(Wide value) { return __float_as_uint(value); }
};

template <>
struct Form<Element::f64> {
    using Bits = uint64_t;
    using Wide = double;
    static __device__ Wide widen(Bits bits) { return __longlong_as_double(static_cast<long long>(bits)); }
    static __device__ Bits narrow(Wide value) { return static_cast<Bits>(__double_as_longlong(value)); }
    static __device__ Wide add(Wide a, Wide b) { return __dadd_rn(a, b); }
    static __device__ Wide multiply(Wide a, Wide b) { return __dmul_rn(a, b); }
    static __device__ Wide least(Wide a, Wide b) { return fmin(a, b); }
    static __device__ Wide most(Wide a, Wide b) { return fmax(a, b); }
    static __device__ Wide divide(Wide a, unsigned ranks) { return __ddiv_rn(a, static_cast<double>(ranks)); }
};

__device__ inline float half_to_float(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

template <>
struct Form<Element::f16> : FloatArithmetic {
    using Bits = uint16_t;
    static __device__ Wide widen(Bits bits) { return half_to_float(bits); }
    static __device__ Bits narrow(Wide value) {
        Bits bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        return bits;
    }
};

template <>
struct Form<Element::bf16> : FloatArithmetic {
    using Bits = uint16_t;
    static __device__ Wide widen(Bits bits) { return __uint_as_float(uint32_t{bits} << 16); }
    static __device__ Bits narrow(Wide value) {
        Bits bits;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        return bits;
    }
};

// A float of 8 bits with `mantissa` stored bits and the smallest normal exponent `min_exponent`: rounds to
// nearest, ties to even, and to `largest` instead of beyond. By arithmetic, so that every architecture gives
// the same bits.
template <int mantissa, int min_exponent, unsigned largest>
__device__ inline uint8_t round_to_8_bits(float value) {
    const uint32_t bits = __float_as_uint(value);
    const uint32_t sign = bits >> 31 << 7;
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7f);
    const int stored = static_cast<int>(bits >> 23 & 0xff) - 127;
    const int exponent = stored < min_exponent ? min_exponent : stored;
    // The value in units of its last place, at most 2^(mantissa + 1); exact but for the rounding. Infinity
    // and what is far too large end up beyond `largest`.
    const float scale = __uint_as_float(static_cast<uint32_t>(127 + mantissa - exponent) << 23);
    const unsigned units = __float2uint_rn(fabsf(value) * scale);
    const unsigned code = (static_cast<unsigned>(exponent - min_exponent) << mantissa) + units;
    return static_cast<uint8_t>(sign | (code < largest ? code : largest));
}

template <>
struct Form<Element::f8_e4m3> : FloatArithmetic {
    using Bits = uint8_t;
    // As a half its exponent is 8 too small: a factor of 256 mends that.
    static __device__ Wide widen(Bits bits) {
        const float value =
            half_to_float(static_cast<uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7)) * 256.0f;
        return (bits & 0x7f) == 0x7f ? __uint_as_float(0x7fffffffu) : value;
    }
    static __device__ Bits narrow(Wide value) { return round_to_8_bits<3, -6, 0x7e>(value); }
};

template <>
struct Form<Element::f8_e5m2> : FloatArithmetic {
    using Bits = uint8_t;
    static __device__ Wide widen(Bits bits) { return half_to_float(static_cast<uint16_t>(bits << 8)); }
    static __device__ Bits narrow(Wide value) { return round_to_8_bits<2, -14, 0x7b>(value); }
};

// How the inputs of one task are combined, with averages and scales as variants of a sum.
template <Element element>
struct Rule {
    using Wide = typename Form<element>::Wide;
    Combine basic;  // sum, prod, min or max
    bool scaled;
    unsigned divisor;  // 1: none

    __device__ explicit Rule(const CollectiveTask& task, unsigned ranks)
        : basic(task.combine == Combine::avg || task.combine == Combine::scaled_sum ? Combine::sum
                                                                                    : task.combine),
          scaled(task.combine == Combine::scaled_sum),
          divisor(task.combine == Combine::avg ? ranks : 1) {}
};

// `words` 32-bit words of elements, while they are combined.
template <Element element, unsigned words>
struct Accumulator {
    using F = Form<element>;
    using Bits = typename F::Bits;
    using Wide = typename F::Wide;
    static constexpr unsigned count = words * 4 / sizeof(Bits);
    Wide value[count];

    static __device__ Bits bits_of(const uint32_t* from, unsigned i) {
        if constexpr (sizeof(Bits) == 8)
            return from[2 * i] | static_cast<uint64_t>(from[2 * i + 1]) << 32;
        else
            return static_cast<Bits>(from[i * sizeof(Bits) / 4] >> (8 * (i * sizeof(Bits) % 4)));
    }

    __device__ void take(const uint32_t* from, bool first, const Rule<element>& rule, uint64_t scale) {
        Wide next[count];
#pragma unroll
        for (unsigned i = 0; i < count; ++i) next[i] = F::widen(bits_of(from, i));
        if (rule.scaled) {
            const Wide factor = F::widen(static_cast<Bits>(scale));
#pragma unroll
            for (unsigned i = 0; i < count; ++i) next[i] = F::multiply(next[i], factor);
        }
        if (first) {
#pragma unroll
            for (unsigned i = 0; i < count; ++i) value[i] = next[i];
        } else if (rule.basic == Combine::sum) {
#pragma unroll
            for (unsigned i = 0; i < count; ++i) value[i] = F::add(value[i], next[i]);
        } else if (rule.basic == Combine::prod) {
#pragma unroll
            for (unsigned i = 0; i < count; ++i) value[i] = F::multiply(value[i], next[i]);
        } else if (rule.basic == Combine::min) {
#pragma unroll
            for (unsigned i = 0; i < count; ++i) value[i] = F::least(value[i], next[i]);
        } else {
#pragma unroll
            for (unsigned i = 0; i < count; ++i) value[i] = F::most(value[i], next[i]);
        }
    }

    __device__ void give(uint32_t* to, const Rule<element>& rule) {
        if (rule.divisor != 1) {
#pragma unroll
            for (unsigned i = 0; i < count; ++i) value[i] = F::divide(value[i], rule.divisor);
        }
#pragma unroll
        for (unsigned i = 0; i < words; ++i) to[i] = 0;
#pragma unroll
        for (unsigned i = 0; i < count; ++i) {
            const Bits bits = F::narrow(value[i]);
            if constexpr (sizeof(Bits) == 8) {
                to[2 * i] = static_cast<uint32_t>(bits);
                to[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
            } else {
                to[i * sizeof(Bits) / 4] |= static_cast<uint32_t>(bits) << (8 * (i * sizeof(Bits) % 4));
            }
        }
    }
};

}  // namespace sidestep::backends::cuda
