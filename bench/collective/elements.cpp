#include "bench/collective/elements.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sidestep::bench::collective {
namespace {

// Exponent and mantissa bits of floats of at most 16 bits; {0, 0} for other types. All have the usual bias.
struct Layout {
    int exponent = 0;
    int mantissa = 0;
};
Layout layout_of(Dtype type) {
    switch (type) {
        case Dtype::f16:
            return {5, 10};
        case Dtype::bf16:
            return {8, 7};
        case Dtype::f8_e4m3:
            return {4, 3};
        case Dtype::f8_e5m2:
            return {5, 2};
        default:
            return {};
    }
}

bool is_float(Dtype type) {
    return layout_of(type).exponent != 0 || type == Dtype::f32 || type == Dtype::f64;
}
bool is_unsigned(Dtype type) {
    return type == Dtype::u8 || type == Dtype::u32 || type == Dtype::u64;
}

// The values used here are far below the largest of a type, so neither infinity nor NaN is looked at.
std::uint32_t encode_float(Layout layout, double value) {
    const int bias = (1 << (layout.exponent - 1)) - 1;
    const std::uint32_t sign = std::signbit(value) ? 1u << (layout.exponent + layout.mantissa) : 0;
    const double size = std::fabs(value);
    if (size == 0) return sign;
    int power = 0;
    std::frexp(size, &power);                            // size = f * 2^power, f in [0.5, 1)
    const int exponent = std::max(power - 1, 1 - bias);  // of a subnormal: the least one
    const double units = std::nearbyint(std::ldexp(size, layout.mantissa - exponent));
    auto digits = static_cast<std::uint32_t>(units);  // with the leading one, where there is one
    std::uint32_t field = static_cast<std::uint32_t>(exponent + bias) << layout.mantissa;
    if (digits < 1u << layout.mantissa)
        field = 0;
    else
        digits -= 1u << layout.mantissa;
    return sign | (field + digits);  // a carry goes into the exponent
}

double decode_float(Layout layout, std::uint32_t bits) {
    const int bias = (1 << (layout.exponent - 1)) - 1;
    const std::uint32_t digits = bits & ((1u << layout.mantissa) - 1);
    const int field = static_cast<int>(bits >> layout.mantissa) & ((1 << layout.exponent) - 1);
    const double size = field == 0 ? std::ldexp(static_cast<double>(digits), 1 - bias - layout.mantissa)
                                   : std::ldexp(static_cast<double>(digits + (1u << layout.mantissa)),
                                                field - bias - layout.mantissa);
    return bits >> (layout.exponent + layout.mantissa) & 1 ? -size : size;
}

template <typename T>
void put(double value, std::byte* out) {
    T wrapped;
    if constexpr (std::is_floating_point_v<T>)
        wrapped = static_cast<T>(value);
    else
        wrapped = static_cast<T>(static_cast<std::int64_t>(value));
    std::memcpy(out, &wrapped, sizeof wrapped);
}
template <typename T>
double take(const std::byte* in) {
    T value;
    std::memcpy(&value, in, sizeof value);
    return static_cast<double>(value);
}

std::uint64_t mixed(std::uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// What rank `rank` puts in at `index`, where inputs are combined.
double small_value(ReduceOp op, Dtype type, int rank, std::uint64_t index) {
    const std::uint64_t random = mixed(index * 64 + static_cast<std::uint64_t>(rank) + 1);
    const bool wide = bits_of(type) > 8;
    switch (op) {
        case ReduceOp::prod:  // at most one 2 among 8 ranks
            if (index % 8 == static_cast<std::uint64_t>(rank) % 8) return 2;
            return random % 2 == 0 || is_unsigned(type) ? 1 : -1;
        case ReduceOp::min:
        case ReduceOp::max:
            return static_cast<double>(random % 16) - (is_unsigned(type) ? 0 : 8);
        default: {
            const double value = static_cast<double>(random % (wide ? 5 : 2));
            // Averages of unsigned numbers must not wrap.
            return is_unsigned(type) ? value : value - (wide ? 2 : 0);
        }
    }
}

double combined(ReduceOp op, const std::vector<double>& values, bool whole) {
    double result = values.front();
    if (op == ReduceOp::scaled_sum) result *= Elements::scale;
    for (std::size_t r = 1; r < values.size(); ++r) switch (op) {
            case ReduceOp::prod:
                result *= values[r];
                break;
            case ReduceOp::min:
                result = std::min(result, values[r]);
                break;
            case ReduceOp::max:
                result = std::max(result, values[r]);
                break;
            case ReduceOp::scaled_sum:
                result += Elements::scale * values[r];
                break;
            default:
                result += values[r];
        }
    if (op != ReduceOp::avg) return result;
    result /= static_cast<double>(values.size());
    return whole ? std::trunc(result) : result;
}

}  // namespace

void encode(Dtype type, double value, std::byte* out) {
    switch (type) {
        case Dtype::i8:
            return put<std::int8_t>(value, out);
        case Dtype::u8:
            return put<std::uint8_t>(value, out);
        case Dtype::i32:
            return put<std::int32_t>(value, out);
        case Dtype::u32:
            return put<std::uint32_t>(value, out);
        case Dtype::i64:
            return put<std::int64_t>(value, out);
        case Dtype::u64:
            return put<std::uint64_t>(value, out);
        case Dtype::f32:
            return put<float>(value, out);
        case Dtype::f64:
            return put<double>(value, out);
        default:
            break;
    }
    const std::uint32_t bits = encode_float(layout_of(type), value);
    const auto two = static_cast<std::uint16_t>(bits);
    const auto one = static_cast<std::uint8_t>(bits);
    if (bits_of(type) == 16)
        std::memcpy(out, &two, 2);
    else
        std::memcpy(out, &one, 1);
}

double decode(Dtype type, const std::byte* in) {
    switch (type) {
        case Dtype::i8:
            return take<std::int8_t>(in);
        case Dtype::u8:
            return take<std::uint8_t>(in);
        case Dtype::i32:
            return take<std::int32_t>(in);
        case Dtype::u32:
            return take<std::uint32_t>(in);
        case Dtype::i64:
            return take<std::int64_t>(in);
        case Dtype::u64:
            return take<std::uint64_t>(in);
        case Dtype::f32:
            return take<float>(in);
        case Dtype::f64:
            return take<double>(in);
        default:
            break;
    }
    const auto bits =
        static_cast<std::uint32_t>(bits_of(type) == 16 ? take<std::uint16_t>(in) : take<std::uint8_t>(in));
    return decode_float(layout_of(type), bits);
}

Elements::Elements(const Call& call, int ranks)
    : type_(call.type), ranks_(ranks), element_(static_cast<std::size_t>(bits_of(call.type)) / 8) {
    const bool combining = combines(call.operation);
    tolerant_ = combining && call.reduction == ReduceOp::avg && is_float(type_);
    inputs_.resize(static_cast<std::size_t>(ranks));
    if (combining) combined_.resize(period * element_);
    for (auto& input : inputs_) input.resize(period * element_);
    std::vector<double> values(inputs_.size());
    for (std::uint64_t i = 0; i < period; ++i) {
        for (std::size_t r = 0; r < inputs_.size(); ++r) {
            std::byte* const at = inputs_[r].data() + i * element_;
            if (combining) {
                values[r] = small_value(call.reduction, type_, static_cast<int>(r), i);
                encode(type_, values[r], at);
            } else {
                const std::uint64_t bits = mixed(i * 64 + r + 1);
                std::memcpy(at, &bits, element_);
            }
        }
        if (combining)
            encode(type_, combined(call.reduction, values, !is_float(type_)),
                   combined_.data() + i * element_);
    }
}

const std::byte* Elements::expected(const Call& call, int rank, int root, std::uint64_t index) const {
    const std::uint64_t block = call.count == 0 ? 0 : index / call.count;
    const std::uint64_t within = call.count == 0 ? 0 : index % call.count;
    const auto own = static_cast<std::uint64_t>(rank);
    switch (call.operation) {
        case Collective::broadcast:
            return at(input(root), index);
        case Collective::all_gather:
        case Collective::gather:
            return at(input(static_cast<int>(block)), within);
        case Collective::reduce_scatter:
            return at(combined_, own * call.count + index);
        case Collective::all_to_all:
            return at(input(static_cast<int>(block)), own * call.count + within);
        case Collective::scatter:
            return at(input(root), own * call.count + index);
        case Collective::send_recv:
            return at(input((rank + ranks_ - 1) % ranks_), index);
        case Collective::all_to_all_v: {
            // Only rank 1 receives blocks of different sizes, and only rank 0 sends them.
            std::uint64_t left = index;
            for (int from = 0; from < ranks_; ++from) {
                const std::uint64_t here = skewed_count(call.count, from, rank);
                if (left >= here) {
                    left -= here;
                    continue;
                }
                std::uint64_t begin = 0;
                for (int to = 0; to < rank; ++to) begin += skewed_count(call.count, from, to);
                return at(input(from), begin + left);
            }
            return nullptr;
        }
        default:
            return at(combined_, index);
    }
}

bool Elements::same(const std::byte* a, const std::byte* b) const {
    if (std::memcmp(a, b, element_) == 0) return true;
    if (!tolerant_) return false;
    const Layout layout = layout_of(type_);
    const int digits = type_ == Dtype::f32 ? 23 : type_ == Dtype::f64 ? 52 : layout.mantissa;
    const double x = decode(type_, a), y = decode(type_, b);
    return std::fabs(x - y) <= std::ldexp(2 * std::max(std::fabs(x), std::fabs(y)), -digits);
}

std::uint64_t sent_elements(const Call& call, int rank, int ranks) {
    const auto n = static_cast<std::uint64_t>(ranks);
    switch (call.operation) {
        case Collective::reduce_scatter:
        case Collective::all_to_all:
        case Collective::scatter:
            return n * call.count;
        case Collective::all_to_all_v: {
            std::uint64_t sum = 0;
            for (int to = 0; to < ranks; ++to) sum += skewed_count(call.count, rank, to);
            return sum;
        }
        default:
            return call.count;
    }
}

std::uint64_t received_elements(const Call& call, int rank, int ranks, int root) {
    const auto n = static_cast<std::uint64_t>(ranks);
    switch (call.operation) {
        case Collective::reduce:
            return rank == root ? call.count : 0;
        case Collective::gather:
            return rank == root ? n * call.count : 0;
        case Collective::all_gather:
        case Collective::all_to_all:
            return n * call.count;
        case Collective::all_to_all_v: {
            std::uint64_t sum = 0;
            for (int from = 0; from < ranks; ++from) sum += skewed_count(call.count, from, rank);
            return sum;
        }
        default:
            return call.count;
    }
}

std::uint64_t input_offset(const Call& call, int rank) {
    const bool gathers = call.operation == Collective::all_gather || call.operation == Collective::gather;
    return gathers ? static_cast<std::uint64_t>(rank) * call.count : 0;
}

std::uint64_t output_offset(const Call& call, int rank) {
    const bool parts = call.operation == Collective::reduce_scatter || call.operation == Collective::scatter;
    return parts ? static_cast<std::uint64_t>(rank) * call.count : 0;
}

}  // namespace sidestep::bench::collective
