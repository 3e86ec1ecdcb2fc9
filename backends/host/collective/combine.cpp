#include "backends/host/collective/combine.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "backends/host/collective/numbers.hpp"

namespace sidestep::backends::host {
namespace {

using protocol::Combine;
using protocol::Element;

// A type as it is stored, and the one that it is added up in. Integers wrap: they are added and multiplied
// without sign, in at least 32 bits, since anything smaller would be promoted to a signed type.
template <typename T>
struct Plain {
    using Stored = T;
    using Sum = T;
    static Sum load(Stored stored) { return stored; }
    static Stored store(Sum sum) { return sum; }
};

// As on GPUs, every NaN that comes out of arithmetic in 32 bits is one and the same ("PTX ISA",
// floating-point instructions: canonical NaN), whichever NaNs went in.
struct Float32 : Plain<float> {
    static Stored store(Sum sum) { return sum == sum ? sum : std::bit_cast<float>(0x7fffffffu); }
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

// Of a NaN and a number, min and max take the number, as the kernels do.
template <Combine how, typename T>
T join(T a, T b) {
    if constexpr (how == Combine::prod) return static_cast<T>(wide(a) * wide(b));
    if constexpr (how == Combine::min) return b < a || a != a ? b : a;
    if constexpr (how == Combine::max) return a < b || a != a ? b : a;
    return static_cast<T>(wide(a) + wide(b));
}

constexpr std::size_t at_a_time = 256;

// Takes up to so many elements of one rank into the sums; `first`: there are none yet.
template <typename Type, Combine how>
void add(const Reduction& reduction, const char* from, unsigned rank, bool first, typename Type::Sum* sums,
         std::size_t count) {
    typename Type::Stored stored[at_a_time];
    typename Type::Stored scale;
    std::memcpy(stored, from, count * sizeof(scale));
    std::memcpy(&scale, &reduction.scales[rank], sizeof(scale));
    const typename Type::Sum factor = Type::load(scale);
    for (std::size_t i = 0; i < count; ++i) {
        typename Type::Sum value = Type::load(stored[i]);
        if constexpr (how == Combine::scaled_sum) value = join<Combine::prod>(value, factor);
        sums[i] = first ? value : join<how>(sums[i], value);
    }
}

template <typename Type, Combine how>
void finish(const Reduction& reduction, const typename Type::Sum* sums, char* out, std::size_t count) {
    using Sum = typename Type::Sum;
    typename Type::Stored stored[at_a_time];
    for (std::size_t i = 0; i < count; ++i) {
        if constexpr (how == Combine::avg)
            stored[i] = Type::store(static_cast<Sum>(sums[i] / static_cast<Sum>(reduction.ranks)));
        else
            stored[i] = Type::store(sums[i]);
    }
    std::memcpy(out, stored, count * sizeof(stored[0]));
}

// The sources beside what there is so far; `last`: `out` holds elements, else sums.
template <typename Type, Combine how>
void combine_as(const Reduction& reduction, const char* so_far, std::span<const char* const> sources,
                std::span<const unsigned> numbers, bool last, char* out, std::uint64_t count) {
    using Stored = typename Type::Stored;
    using Sum = typename Type::Sum;
    Sum sums[at_a_time];
    for (std::uint64_t at = 0; at < count; at += at_a_time) {
        const auto these = static_cast<std::size_t>(std::min<std::uint64_t>(at_a_time, count - at));
        if (so_far != nullptr) std::memcpy(sums, so_far + at * sizeof(Sum), these * sizeof(Sum));
        for (std::size_t source = 0; source < sources.size(); ++source)
            add<Type, how>(reduction, sources[source] + at * sizeof(Stored), numbers[source],
                           so_far == nullptr && source == 0, sums, these);
        if (last)
            finish<Type, how>(reduction, sums, out + at * sizeof(Stored), these);
        else
            std::memcpy(out + at * sizeof(Sum), sums, these * sizeof(Sum));
    }
}

// As protocol::Element numbers them.
using Types =
    std::tuple<Plain<std::int8_t>, Plain<std::uint8_t>, Plain<std::int32_t>, Plain<std::uint32_t>,
               Plain<std::int64_t>, Plain<std::uint64_t>, Small<std::uint16_t, F16>, Float32, Plain<double>,
               Small<std::uint16_t, BF16>, Small<std::uint8_t, F8E4M3>, Small<std::uint8_t, F8E5M2>>;
static_assert(std::tuple_size_v<Types> == protocol::elements);
static_assert(Element::f32 == Element{7} && Element::bf16 == Element{9} && Element::f8_e5m2 == Element{11});

template <typename Type, Combine... all, typename... Rest>
void combine_by(const Reduction& reduction, const Rest&... rest) {
    ((reduction.combine == all ? combine_as<Type, all>(reduction, rest...) : void()), ...);
}

}  // namespace

void combine(const Reduction& reduction, std::span<const char* const> sources,
             std::span<const unsigned> numbers, char* out, std::uint64_t count, const char* so_far,
             bool last) {
    [&]<std::size_t... number>(std::index_sequence<number...>) {
        ((reduction.element == Element{number}
              ? combine_by<std::tuple_element_t<number, Types>, Combine::sum, Combine::prod, Combine::min,
                           Combine::max, Combine::avg, Combine::scaled_sum>(reduction, so_far, sources,
                                                                            numbers, last, out, count)
              : void()),
         ...);
    }
    (std::make_index_sequence<protocol::elements>());
}

}  // namespace sidestep::backends::host
