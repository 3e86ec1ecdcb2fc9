// Lines of 120 bytes of payload and a flag, as Shape::lines has them in an arena. Threads of a host have no
// store of 128 bytes: the flag is stored after the payload, and loaded before it.
#pragma once

#include <algorithm>

#include "backends/host/collective/arena_words.hpp"

namespace sidestep::backends::host {

// Of the 16 words of a line, the one of a unit of 8 bytes. The last one is the flag.
constexpr unsigned word_of_unit(unsigned unit) {
    return unit < 8 ? 2 * unit : 2 * (unit - 8) + 1;
}
constexpr unsigned units_a_line = protocol::line_payload / 8;
constexpr std::uint64_t flag_of_line = 15 * 8;
static_assert(word_of_unit(units_a_line - 1) < 15);

inline char* line_at(char* lane, std::uint64_t number) {
    return lane + number * (protocol::row_bytes / protocol::row_lines);
}

// Up to line_payload bytes; the rest of the last unit is filled up with zeros.
inline void store_payload(char* line, const char* from, std::uint64_t bytes, std::uint64_t flag) {
    for (unsigned unit = 0; unit * 8 < bytes; ++unit) {
        std::uint64_t value = 0;
        std::memcpy(&value, from + unit * 8, std::min<std::uint64_t>(8, bytes - unit * 8));
        store_word(line + word_of_unit(unit) * 8, value, Order::relaxed);
    }
    store_word(line + flag_of_line, flag);
}

// Whether the line with this flag is there; then also what it carries.
inline bool load_payload(const char* line, char* to, std::uint64_t bytes, std::uint64_t flag) {
    if (load_word(line + flag_of_line) != flag) return false;
    for (unsigned unit = 0; unit * 8 < bytes; ++unit) {
        const std::uint64_t value = load_word(line + word_of_unit(unit) * 8, Order::relaxed);
        std::memcpy(to + unit * 8, &value, std::min<std::uint64_t>(8, bytes - unit * 8));
    }
    return true;
}

}  // namespace sidestep::backends::host
