// Sizes and rates as the whole library counts them.
//
// Sizes are bytes, written in powers of 1024 (KiB, MiB, GiB, TiB). Rates are gigabytes a second,
// 1 GB = 10^9 bytes, as link vendors and benchmarks count them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <sidestep/api.h>
#include <sidestep/result.hpp>

namespace sidestep {

// A number of bytes, or an offset in bytes.
using Bytes = std::uint64_t;

inline namespace literals {
constexpr Bytes operator""_KiB(unsigned long long n) {
    return n << 10;
}
constexpr Bytes operator""_MiB(unsigned long long n) {
    return n << 20;
}
constexpr Bytes operator""_GiB(unsigned long long n) {
    return n << 30;
}
}  // namespace literals

// Reads "4096", "4KiB", "1.5 GiB", "64M". A bare K, M, G or T means KiB, MiB, GiB or TiB; "kB", "MB",
// "GB" and "TB" mean powers of 1000. Fails with ErrorCode::invalid_argument on anything else, on a
// fraction that is not a whole number of bytes, and on values of 2^64 and above.
SIDESTEP_API Result<Bytes> parse_bytes(std::string_view text);

// "4 KiB", "1.5 GiB", "123 B": the largest unit that keeps the number at 1 or above.
SIDESTEP_API std::string format_bytes(Bytes bytes);

// "396 GB/s", "55.5 GB/s", "0.0123 GB/s": three significant digits.
SIDESTEP_API std::string format_rate(double gb_per_s);

// "1.2 us", "35 ms", "12.3 s": three significant digits.
SIDESTEP_API std::string format_seconds(double seconds);

}  // namespace sidestep
