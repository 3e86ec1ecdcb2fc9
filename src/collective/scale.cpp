// The factor of a scaled sum as the bytes of one element.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <sidestep/collective.hpp>

namespace sidestep {

namespace {

// A float of at most 16 bits: sign, exponent, mantissa.
struct SmallFloat {
    int exponent_bits;
    int mantissa_bits;
    std::uint32_t largest;  // code of the largest finite value
    std::uint32_t beyond;   // code of what lies further off
    std::uint32_t nan;
};
// f8_e4m3 has no infinity: what lies beyond becomes its largest value. Source: Micikevicius and others, "FP8
// formats for deep learning", arXiv:2209.05433, table 1.
constexpr SmallFloat f16{5, 10, 0x7bff, 0x7c00, 0x7e00};
constexpr SmallFloat bf16{8, 7, 0x7f7f, 0x7f80, 0x7fc0};
constexpr SmallFloat f8_e4m3{4, 3, 0x7e, 0x7e, 0x7f};
constexpr SmallFloat f8_e5m2{5, 2, 0x7b, 0x7c, 0x7e};

// The nearest value, ties to even.
std::uint32_t encode(double value, const SmallFloat& type) {
    const std::uint32_t sign = std::signbit(value) ? 1u << (type.exponent_bits + type.mantissa_bits) : 0;
    if (std::isnan(value)) return sign | type.nan;
    if (std::isinf(value)) return sign | type.beyond;
    if (value == 0) return sign;
    // Of the smallest normal number; those below it share its step.
    const int lowest = 2 - (1 << (type.exponent_bits - 1));
    const int exponent = std::max(std::ilogb(value), lowest);
    if (exponent - lowest >= 1 << type.exponent_bits) return sign | type.beyond;
    const double steps = std::nearbyint(std::ldexp(std::fabs(value), type.mantissa_bits - exponent));
    const std::uint32_t code = (static_cast<std::uint32_t>(exponent - lowest) << type.mantissa_bits) +
                               static_cast<std::uint32_t>(steps);
    return sign | (code > type.largest ? type.beyond : code);
}

template <typename Integer>
Integer nearest(double value) {
    if (std::isnan(value)) return 0;
    const double rounded = std::nearbyint(value);
    // The largest integers of 64 bits have no double of their own; the power of two above them has.
    if (rounded >= std::ldexp(1.0, std::numeric_limits<Integer>::digits))
        return std::numeric_limits<Integer>::max();
    if (rounded <= static_cast<double>(std::numeric_limits<Integer>::min()))
        return std::numeric_limits<Integer>::min();
    return static_cast<Integer>(rounded);
}

template <typename Value>
void put(Reduction& reduction, Value value) {
    std::memcpy(reduction.scale.data(), &value, sizeof value);
}

}  // namespace

Reduction Reduction::scaled(double factor, Dtype dtype) {
    Reduction reduction = of(ReduceOp::scaled_sum);
    switch (dtype) {
        case Dtype::f64:
            put(reduction, factor);
            break;
        case Dtype::f32:
            put(reduction, static_cast<float>(factor));
            break;
        case Dtype::f16:
            put(reduction, static_cast<std::uint16_t>(encode(factor, f16)));
            break;
        case Dtype::bf16:
            put(reduction, static_cast<std::uint16_t>(encode(factor, bf16)));
            break;
        case Dtype::f8_e4m3:
            put(reduction, static_cast<std::uint8_t>(encode(factor, f8_e4m3)));
            break;
        case Dtype::f8_e5m2:
            put(reduction, static_cast<std::uint8_t>(encode(factor, f8_e5m2)));
            break;
        case Dtype::i8:
            put(reduction, nearest<std::int8_t>(factor));
            break;
        case Dtype::boolean:
        case Dtype::u8:
            put(reduction, nearest<std::uint8_t>(factor));
            break;
        case Dtype::i32:
            put(reduction, nearest<std::int32_t>(factor));
            break;
        case Dtype::u32:
            put(reduction, nearest<std::uint32_t>(factor));
            break;
        case Dtype::i64:
            put(reduction, nearest<std::int64_t>(factor));
            break;
        case Dtype::u64:
            put(reduction, nearest<std::uint64_t>(factor));
            break;
        default:
            break;  // no operation combines them: see element_of()
    }
    return reduction;
}

}  // namespace sidestep
