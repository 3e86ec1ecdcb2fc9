// Floating-point numbers of 8 and 16 bits, to and from float, in plain C++ that every processor runs alike.
//
// To float is exact. From float rounds to the nearest, ties to even. As NVIDIA's conversions have it: what is
// too large becomes infinite in f16 and bf16, and the largest finite number (`satfinite`) in the two of 8
// bits; every NaN becomes the one with all bits of exponent and mantissa set. Formats: IEEE 754 binary16;
// bfloat16; OCP 8-bit Floating Point Specification (E4M3 has no infinity and one NaN, E5M2 is a shortened
// binary16).
#pragma once

#include <bit>
#include <cstdint>

namespace sidestep::backends::host {

// A sign, exponent bits, `mantissa` bits. Numbers above `largest` (a code without its sign) become `beyond`; `infinite` is
// read as infinity.
template <typename Code, unsigned mantissa, unsigned bias, unsigned largest, unsigned beyond,
          unsigned infinite = beyond>
struct SmallFloat {
    static constexpr unsigned sign_shift = sizeof(Code) * 8 - 1;
    static constexpr unsigned nan = (1u << sign_shift) - 1;
    static constexpr unsigned widened = 23 - mantissa;
    static constexpr unsigned rebias = 127 - bias;
    static constexpr unsigned smallest_normal = 1u << mantissa;

    // 2^(1 - bias - mantissa): one step of the numbers below the normal ones, a float by its bits.
    static constexpr float step() { return std::bit_cast<float>((128u - bias - mantissa) << 23); }
    // 2^23 of these steps: a sum with it is rounded to whole ones.
    static constexpr float steps() { return std::bit_cast<float>((151u - bias - mantissa) << 23); }

    static float to_float(Code code) {
        const std::uint32_t sign = static_cast<std::uint32_t>(code >> sign_shift) << 31;
        const std::uint32_t magnitude = code & nan;
        if (magnitude > largest)
            return std::bit_cast<float>(sign | (magnitude == infinite ? 0x7f800000u : 0x7fffffffu));
        const float value = magnitude < smallest_normal
                                ? static_cast<float>(magnitude) * step()
                                : std::bit_cast<float>((magnitude << widened) + (rebias << 23));
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
    }

    static Code from_float(float number) {
        const auto bits = std::bit_cast<std::uint32_t>(number);
        const std::uint32_t magnitude = bits & 0x7fffffffu;
        const auto sign = static_cast<std::uint32_t>(bits >> 31 << sign_shift);
        if (magnitude > 0x7f800000u) return static_cast<Code>(nan);
        std::uint32_t code;
        if (magnitude < (rebias + 1) << 23) {
            const float rounded = std::bit_cast<float>(magnitude) + steps();
            code = std::bit_cast<std::uint32_t>(rounded) - std::bit_cast<std::uint32_t>(steps());
        } else {
            const std::uint32_t odd = magnitude >> widened & 1;
            code = ((magnitude + (1u << (widened - 1)) - 1 + odd) >> widened) - (rebias << mantissa);
        }
        return static_cast<Code>(sign | (code > largest ? beyond : code));
    }
};

using F16 = SmallFloat<std::uint16_t, 10, 15, 0x7bff, 0x7c00>;
using F8E4M3 = SmallFloat<std::uint8_t, 3, 7, 0x7e, 0x7e>;
using F8E5M2 = SmallFloat<std::uint8_t, 2, 15, 0x7b, 0x7b, 0x7c>;

// The upper half of a float.
struct BF16 {
    static float to_float(std::uint16_t code) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
    }
    static std::uint16_t from_float(float number) {
        const auto bits = std::bit_cast<std::uint32_t>(number);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
        return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
};

}  // namespace sidestep::backends::host
