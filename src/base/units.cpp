#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <sidestep/units.hpp>

namespace sidestep {
namespace {

std::optional<Bytes> multiplier(std::string_view unit) {
    if (unit.empty() || unit == "B") return 1;
    if (unit == "K" || unit == "KiB") return 1_KiB;
    if (unit == "M" || unit == "MiB") return 1_MiB;
    if (unit == "G" || unit == "GiB") return 1_GiB;
    if (unit == "T" || unit == "TiB") return 1024_GiB;
    if (unit == "kB" || unit == "KB") return 1000;
    if (unit == "MB") return 1000'000;
    if (unit == "GB") return 1000'000'000;
    if (unit == "TB") return 1000'000'000'000;
    return std::nullopt;
}

Error not_a_size(std::string_view text) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("'{}' is not a size", text),
                 {},
                 "write a number of bytes, or one with KiB, MiB, GiB or TiB, such as 64MiB"};
}

Error too_large(std::string_view text) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("'{}' is too large", text),
                 {},
                 "sizes go up to 16 EiB less one byte"};
}

// The number that `digits` spells, or nothing where it is 2^64 or above.
std::optional<Bytes> whole_number(std::string_view digits) {
    Bytes number = 0;
    for (const char digit : digits) {
        const Bytes value = static_cast<Bytes>(digit - '0');
        if (number > (~Bytes{0} - value) / 10) return std::nullopt;
        number = number * 10 + value;
    }
    return number;
}

// 0.`digits` times `scale`, or nothing where that is not a whole number. Exact: doubles would refuse 1.1 kB
// and take fractions of a byte for whole ones. From the last digit on, a remainder never goes away again.
std::optional<Bytes> fraction_of(Bytes scale, std::string_view digits) {
    Bytes sum = 0;
    for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
        const Bytes tenths = static_cast<Bytes>(*digit - '0') * scale + sum;
        if (tenths % 10 != 0) return std::nullopt;
        sum = tenths / 10;
    }
    return sum;
}

// Three significant digits, without an exponent.
std::string three_digits(double value) {
    if (value == 0) return "0";
    // What rounds up to a power of ten (9.996) has one digit less after the point than its own logarithm
    // says.
    const double exponent = std::floor(std::log10(std::fabs(value) / 0.9995));
    return fmt::format("{:.{}f}", value, std::clamp(2 - static_cast<int>(exponent), 0, 12));
}

}  // namespace

Result<Bytes> parse_bytes(std::string_view text) {
    const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
    const std::string_view number = text.substr(0, end);
    std::string_view unit = text.substr(end);
    if (unit.size() > 1 && unit.front() == ' ') unit.remove_prefix(1);
    const auto scale = multiplier(unit);
    const std::size_t point = std::min(number.find('.'), number.size());
    const std::string_view fraction = number.substr(std::min(point + 1, number.size()));
    if (point == 0 || (point < number.size() && fraction.empty()) || !scale ||
        fraction.find('.') != std::string_view::npos)
        return not_a_size(text);

    const auto whole = whole_number(number.substr(0, point));
    if (!whole || *whole > ~Bytes{0} / *scale) return too_large(text);
    const auto part = fraction_of(*scale, fraction);
    if (!part) return not_a_size(text);
    if (*part > ~Bytes{0} - *whole * *scale) return too_large(text);
    return *whole * *scale + *part;
}

std::string format_bytes(Bytes bytes) {
    constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) return fmt::format("{} B", bytes);
    double value = static_cast<double>(bytes) / 1024;
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < std::size(units)) {
        value /= 1024;
        ++unit;
    }
    if (value == std::floor(value)) return fmt::format("{:.0f} {}", value, units[unit]);
    return fmt::format("{} {}", value >= 1000 ? fmt::format("{:.0f}", value) : three_digits(value),
                       units[unit]);
}

std::string format_rate(double gb_per_s) {
    return three_digits(gb_per_s) + " GB/s";
}

std::string format_seconds(double seconds) {
    if (seconds < 1e-6) return three_digits(seconds * 1e9) + " ns";
    if (seconds < 1e-3) return three_digits(seconds * 1e6) + " us";
    if (seconds < 1) return three_digits(seconds * 1e3) + " ms";
    return three_digits(seconds) + " s";
}

}  // namespace sidestep
