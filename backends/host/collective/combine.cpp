#include "backends/host/collective/combine.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backends/host/collective/numbers.hpp"

namespace sidestep::backends::host {
namespace {

using backend::Combine;
using backend::Element;

// A type as it is stored, and the one that it is added up in. Integers wrap: they are added and multiplied
// without sign, in at least 32 bits, since anything smaller would be promoted to a signed type.
template <typename T>
struct Plain {
    using Stored = T;
    using Sum = T;
    static Sum load(Stored stored) { return stored; }
    static Stored store(Sum sum) { return sum; }
};

template <typename Code, typename Format>
struct Small {
    using Stored = Code;
    using Sum = float;
    static Sum load(Stored stored) { return Format::to_float(stored); }
    static Stored store(Sum sum) { return Format::from_float(sum); }
};

template <typename T>
auto wide(T value) {
    if constexpr (std::is_floating_point_v<T>) {
        return value;
    } else {
        using Unsigned = std::make_unsigned_t<T>;
        return static_cast<std::conditional_t<sizeof(T) < 4, std::uint32_t, Unsigned>>(value);
    }
}

template <typename T>
bool is_nan(T value) {
    if constexpr (std::is_floating_point_v<T>) return value != value;
    return false;
}

// Of a NaN and a number, min and max take the number, as the kernels do.
template <Combine how, typename T>
T join(T a, T b) {
    if constexpr (how == Combine::prod) return static_cast<T>(wide(a) * wide(b));
    if constexpr (how == Combine::min) return b < a || is_nan(a) ? b : a;
    if constexpr (how == Combine::max) return a < b || is_nan(a) ? b : a;
    return static_cast<T>(wide(a) + wide(b));
}

template <typename Type, Combine how>
void combine_as(const Reduction& reduction, std::span<const char* const> sources,
                std::span<const unsigned> numbers, char* out, std::uint64_t count) {
    using Stored = typename Type::Stored;
    using Sum = typename Type::Sum;
    constexpr std::uint64_t at_a_time = 256;
    Sum sums[at_a_time];
    Stored stored[at_a_time];
    for (std::uint64_t at = 0; at < count; at += at_a_time) {
        const auto these = static_cast<std::size_t>(std::min(at_a_time, count - at));
        for (std::size_t source = 0; source < sources.size(); ++source) {
            std::memcpy(stored, sources[source] + at * sizeof(Stored), these * sizeof(Stored));
            Stored factor_code{};
            std::memcpy(&factor_code, &reduction.scales[numbers[source]], sizeof(factor_code));
            const Sum factor = Type::load(factor_code);
            for (std::size_t i = 0; i < these; ++i) {
                Sum value = Type::load(stored[i]);
                if constexpr (how == Combine::scaled_sum) value = join<Combine::prod>(value, factor);
                sums[i] = source == 0 ? value : join<how>(sums[i], value);
            }
        }
        for (std::size_t i = 0; i < these; ++i) {
            if constexpr (how == Combine::avg)
                sums[i] = static_cast<Sum>(sums[i] / static_cast<Sum>(reduction.ranks));
            stored[i] = Type::store(sums[i]);
        }
        std::memcpy(out + at * sizeof(Stored), stored, these * sizeof(Stored));
    }
}

template <typename Type>
void combine_type(const Reduction& reduction, std::span<const char* const> sources,
                  std::span<const unsigned> numbers, char* out, std::uint64_t count) {
    switch (reduction.combine) {
        case Combine::none:
            return;
        case Combine::sum:
            return combine_as<Type, Combine::sum>(reduction, sources, numbers, out, count);
        case Combine::prod:
            return combine_as<Type, Combine::prod>(reduction, sources, numbers, out, count);
        case Combine::min:
            return combine_as<Type, Combine::min>(reduction, sources, numbers, out, count);
        case Combine::max:
            return combine_as<Type, Combine::max>(reduction, sources, numbers, out, count);
        case Combine::avg:
            return combine_as<Type, Combine::avg>(reduction, sources, numbers, out, count);
        case Combine::scaled_sum:
            return combine_as<Type, Combine::scaled_sum>(reduction, sources, numbers, out, count);
    }
}

}  // namespace

void combine(const Reduction& reduction, std::span<const char* const> sources,
             std::span<const unsigned> numbers, char* out, std::uint64_t count) {
    switch (reduction.element) {
        case Element::i8:
            return combine_type<Plain<std::int8_t>>(reduction, sources, numbers, out, count);
        case Element::u8:
            return combine_type<Plain<std::uint8_t>>(reduction, sources, numbers, out, count);
        case Element::i32:
            return combine_type<Plain<std::int32_t>>(reduction, sources, numbers, out, count);
        case Element::u32:
            return combine_type<Plain<std::uint32_t>>(reduction, sources, numbers, out, count);
        case Element::i64:
            return combine_type<Plain<std::int64_t>>(reduction, sources, numbers, out, count);
        case Element::u64:
            return combine_type<Plain<std::uint64_t>>(reduction, sources, numbers, out, count);
        case Element::f32:
            return combine_type<Plain<float>>(reduction, sources, numbers, out, count);
        case Element::f64:
            return combine_type<Plain<double>>(reduction, sources, numbers, out, count);
        case Element::f16:
            return combine_type<Small<std::uint16_t, F16>>(reduction, sources, numbers, out, count);
        case Element::bf16:
            return combine_type<Small<std::uint16_t, BF16>>(reduction, sources, numbers, out, count);
        case Element::f8_e4m3:
            return combine_type<Small<std::uint8_t, F8E4M3>>(reduction, sources, numbers, out, count);
        case Element::f8_e5m2:
            return combine_type<Small<std::uint8_t, F8E5M2>>(reduction, sources, numbers, out, count);
    }
}

}  // namespace sidestep::backends::host
