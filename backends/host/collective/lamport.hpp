// Units of 16 bytes whose data is its own flag, as Shape::lamport has them in an arena: four words, each of
// which arrives as a whole, and none of which is ever sent as what an empty lane holds.
#pragma once

#include <algorithm>

#include "backends/host/collective/arena_words.hpp"

namespace sidestep::backends::host {

constexpr unsigned words_a_unit = protocol::lamport_unit / 4;

inline std::atomic_ref<std::uint32_t> lamport_word(char* unit, unsigned number) {
    return std::atomic_ref(reinterpret_cast<std::uint32_t*>(unit)[number]);
}

// 1 to 16 bytes; the rest is filled up with zeros.
inline void store_unit(char* unit, const char* from, std::uint64_t bytes) {
    std::uint32_t words[words_a_unit] = {};
    std::memcpy(words, from, bytes);
    for (unsigned w = 0; w < words_a_unit; ++w)
        lamport_word(unit, w).store(
            words[w] == protocol::lamport_empty ? protocol::lamport_instead : words[w], Order::relaxed);
}

// Whether the unit is there; then also what it carries.
inline bool load_unit(char* unit, char* to, std::uint64_t bytes) {
    std::uint32_t words[words_a_unit];
    for (unsigned w = 0; w < words_a_unit; ++w) {
        words[w] = lamport_word(unit, w).load(Order::relaxed);
        if (words[w] == protocol::lamport_empty) return false;
    }
    std::memcpy(to, words, bytes);
    return true;
}

inline void empty_units(char* lane, std::uint64_t units) {
    for (std::uint64_t w = 0; w < units * words_a_unit; ++w)
        std::atomic_ref(reinterpret_cast<std::uint32_t*>(lane)[w])
            .store(protocol::lamport_empty, Order::relaxed);
}

}  // namespace sidestep::backends::host
