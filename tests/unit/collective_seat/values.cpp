#include "values.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "tests/contents.hpp"

namespace sidestep::collective_seat {
namespace {

using protocol::Combine;
using protocol::Element;

// A small floating type: bits of exponent and mantissa.
struct Format {
    int exponent;
    int mantissa;
};
Format format_of(Element element) {
    switch (element) {
        case Element::f16:
            return {5, 10};
        case Element::bf16:
            return {8, 7};
        case Element::f8_e4m3:
            return {4, 3};
        default:
            return {5, 2};
    }
}

bool is_small(Element element) {
    return is_float(element) && protocol::size_of(element) <= 2;
}

double decode_small(Element element, unsigned code) {
    const auto [exponent_bits, mantissa_bits] = format_of(element);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const bool negative = code >> (exponent_bits + mantissa_bits) & 1;
    const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const int mantissa = static_cast<int>(code) & ((1 << mantissa_bits) - 1);
    const bool top = exponent == (1 << exponent_bits) - 1;
    double value;
    if (element == Element::f8_e4m3 && top && mantissa == 7) {
        value = std::nan("");
    } else if (element != Element::f8_e4m3 && top) {
        value = mantissa == 0 ? INFINITY : std::nan("");
    } else if (exponent == 0) {
        value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
    } else {
        value = std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    }
    return negative ? -value : value;
}

// Every finite number of a small type from 0 up; its place is its code.
const std::vector<double>& finite_numbers(Element element) {
    static std::map<Element, std::vector<double>> tables;
    std::vector<double>& table = tables[element];
    for (unsigned code = 0; table.size() == code; ++code) {
        const double value = decode_small(element, code);
        if (std::isfinite(value) && !(value < 0)) table.push_back(value);
        if (code >> (protocol::size_of(element) * 8 - 1) != 0) break;
    }
    return table;
}

unsigned encode_small(Element element, double value) {
    const std::vector<double>& table = finite_numbers(element);
    const double magnitude = std::fabs(value);
    const auto above = std::lower_bound(table.begin(), table.end(), magnitude);
    auto code = static_cast<unsigned>(above - table.begin());
    if (above == table.end()) {
        code = static_cast<unsigned>(table.size()) - 1;
    } else if (code > 0) {
        const double up = table[code] - magnitude;
        const double down = magnitude - table[code - 1];
        if (down < up || (down == up && code % 2 == 1)) --code;
    }
    return code | (std::signbit(value) ? 1u << (protocol::size_of(element) * 8 - 1) : 0u);
}

std::uint64_t load(Element element, const char* at) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, at, protocol::size_of(element));
    return bits;
}

// The distance between numbers of the type around a value.
double spacing(Element element, double value) {
    int mantissa = element == Element::f64 ? 52 : 23;
    int lowest = element == Element::f64 ? -1022 : -126;
    if (is_small(element)) {
        mantissa = format_of(element).mantissa;
        lowest = 2 - (1 << (format_of(element).exponent - 1));
    }
    const int exponent = value == 0 ? lowest : std::max(lowest, std::ilogb(value));
    return std::ldexp(1, exponent - mantissa);
}

template <typename Signed>
std::uint64_t integer_result(Combine combine, const std::vector<std::uint64_t>& inputs,
                             const std::vector<std::uint64_t>& scales) {
    // In 64 bits, cut to the type at the end: the same as cutting after each step.
    const auto cut = [](std::uint64_t value) { return static_cast<Signed>(value); };
    std::uint64_t result = inputs[0] * (combine == Combine::scaled_sum ? scales[0] : 1);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
        const std::uint64_t next = inputs[rank];
        switch (combine) {
            case Combine::prod:
                result *= next;
                break;
            case Combine::min:
                result = cut(next) < cut(result) ? next : result;
                break;
            case Combine::max:
                result = cut(result) < cut(next) ? next : result;
                break;
            case Combine::scaled_sum:
                result += next * scales[rank];
                break;
            default:
                result += next;
        }
    }
    if (combine == Combine::avg)
        result = static_cast<std::uint64_t>(cut(result) / static_cast<Signed>(inputs.size()));
    return static_cast<std::uint64_t>(cut(result)) & (~std::uint64_t{0} >> (64 - 8 * sizeof(Signed)));
}

std::uint64_t integer_result(Element element, Combine combine, const std::vector<std::uint64_t>& inputs,
                             const std::vector<std::uint64_t>& scales) {
    switch (element) {
        case Element::i8:
            return integer_result<std::int8_t>(combine, inputs, scales);
        case Element::u8:
            return integer_result<std::uint8_t>(combine, inputs, scales);
        case Element::i32:
            return integer_result<std::int32_t>(combine, inputs, scales);
        case Element::u32:
            return integer_result<std::uint32_t>(combine, inputs, scales);
        case Element::i64:
            return integer_result<std::int64_t>(combine, inputs, scales);
        default:
            return integer_result<std::uint64_t>(combine, inputs, scales);
    }
}

struct Expected {
    double value;
    double tolerance;
};

Expected float_result(Element element, Combine combine, const std::vector<double>& inputs,
                      const std::vector<double>& scales) {
    const bool scaled = combine == Combine::scaled_sum;
    double value = inputs[0] * (scaled ? scales[0] : 1);
    double magnitude = std::fabs(value);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
        const double next = inputs[rank] * (scaled ? scales[rank] : 1);
        switch (combine) {
            case Combine::prod:
                value *= next;
                break;
            case Combine::min:
                value = std::min(value, next);
                break;
            case Combine::max:
                value = std::max(value, next);
                break;
            default:
                value += next;
        }
        magnitude = combine == Combine::prod ? std::fabs(value) : magnitude + std::fabs(next);
    }
    if (combine == Combine::min || combine == Combine::max) return {value, 0};
    if (combine == Combine::avg) {
        value /= static_cast<double>(inputs.size());
        magnitude /= static_cast<double>(inputs.size());
    }
    const double steps = static_cast<double>(inputs.size()) + 1;
    const double accumulator = magnitude * std::ldexp(1, element == Element::f64 ? -52 : -23);
    return {value, steps * accumulator + (is_small(element) ? spacing(element, value) / 2 : 0)};
}

}  // namespace

bool is_float(Element element) {
    return element == Element::f16 || element == Element::f32 || element == Element::f64 ||
           element == Element::bf16 || element == Element::f8_e4m3 || element == Element::f8_e5m2;
}

std::string name_of(Element element) {
    static constexpr std::array names{"i8",  "u8",  "i32", "u32",  "i64",     "u64",
                                      "f16", "f32", "f64", "bf16", "f8_e4m3", "f8_e5m2"};
    return names.at(static_cast<std::size_t>(element));
}

std::string name_of(Combine combine) {
    static constexpr std::array names{"none", "sum", "prod", "min", "max", "avg", "scaled_sum"};
    return names.at(static_cast<std::size_t>(combine));
}

double decode(Element element, const char* code) {
    const std::uint64_t bits = load(element, code);
    if (element == Element::f32) {
        float value;
        std::memcpy(&value, code, sizeof(value));
        return static_cast<double>(value);
    }
    if (element == Element::f64) {
        double value;
        std::memcpy(&value, code, sizeof(value));
        return value;
    }
    return decode_small(element, static_cast<unsigned>(bits));
}

void encode(Element element, double value, char* code) {
    if (element == Element::f32) {
        const auto narrow = static_cast<float>(value);
        std::memcpy(code, &narrow, sizeof(narrow));
    } else if (element == Element::f64) {
        std::memcpy(code, &value, sizeof(value));
    } else {
        const unsigned bits = encode_small(element, value);
        std::memcpy(code, &bits, protocol::size_of(element));
    }
}

std::uint64_t Random::operator()() {
    std::uint64_t word = state_ += 0x9e3779b97f4a7c15;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

Values some_values(Element element, Combine combine, std::uint64_t count, unsigned ranks, Random& random) {
    const unsigned size = protocol::size_of(element);
    Values values(count * size);
    if (!is_float(element)) {
        test::fill(values.data(), values.size(), random());
        return values;
    }
    const auto any = [&] {
        return std::ldexp(static_cast<double>(random() >> 11), -52) - 1;
    };  // from -1 to 1
    for (std::uint64_t i = 0; i < count; ++i) {
        double value = any() * 200 / ranks;
        if (combine == Combine::prod) value = std::copysign(std::exp2(any() * 8 / ranks), value);
        encode(element, value, values.data() + i * size);
    }
    return values;
}

std::uint64_t scale_code(Element element, double value) {
    std::uint64_t code = 0;
    char bytes[8] = {};
    if (is_float(element)) {
        encode(element, value, bytes);
    } else {
        const auto whole = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
        std::memcpy(bytes, &whole, protocol::size_of(element));
    }
    std::memcpy(&code, bytes, sizeof(code));
    return code;
}

std::string wrong_element(Element element, Combine combine, const std::vector<Values>& inputs,
                          const std::vector<double>& scales, const Values& output) {
    const unsigned size = protocol::size_of(element);
    std::vector<std::uint64_t> integer_scales;
    for (const double scale : scales)
        integer_scales.push_back(static_cast<std::uint64_t>(static_cast<std::int64_t>(scale)));
    std::vector<std::uint64_t> codes;
    std::vector<double> numbers;
    for (std::uint64_t at = 0; at < output.size(); at += size) {
        if (!is_float(element)) {
            codes.clear();
            for (const Values& input : inputs) codes.push_back(load(element, input.data() + at));
            const std::uint64_t expected = integer_result(element, combine, codes, integer_scales);
            const std::uint64_t found = load(element, output.data() + at);
            if (found != expected)
                return fmt::format("element {}: {:#x} instead of {:#x}", at / size, found, expected);
            continue;
        }
        numbers.clear();
        for (const Values& input : inputs) numbers.push_back(decode(element, input.data() + at));
        const auto [expected, tolerance] = float_result(element, combine, numbers, scales);
        const double found = decode(element, output.data() + at);
        if (!(std::fabs(found - expected) <= tolerance))
            return fmt::format("element {}: {} instead of {} +- {}", at / size, found, expected, tolerance);
    }
    return {};
}

}  // namespace sidestep::collective_seat
