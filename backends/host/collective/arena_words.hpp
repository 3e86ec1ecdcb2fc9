// The words of an arena that ranks write to each other: flags, and bytes that come with theirs. Arenas are
// shared between processes, so these are lock-free atomics on plain memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "protocol/collective_task.hpp"

namespace sidestep::backends::host {

static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free, "arenas are shared between processes");

using Order = std::memory_order;

// What was written before a store is seen by whoever loads what it stored, except for relaxed ones.
inline void store_word(char* at, std::uint64_t value, Order order = Order::release) {
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(at)).store(value, order);
}
inline std::uint64_t load_word(const char* at, Order order = Order::acquire) {
    auto* const word = reinterpret_cast<std::uint64_t*>(const_cast<char*>(at));
    return std::atomic_ref(*word).load(order);
}

// A packet: {4 bytes, flag, 4 bytes, flag}, which carries 8 bytes. Nothing but these has to be seen with it
// where a header or a barrier has told the rest: then relaxed stores and loads do.
constexpr std::uint64_t packet_bytes = 16;

inline void store_packet(char* at, std::uint64_t value, std::uint32_t flag, Order order = Order::release) {
    const std::uint64_t above = std::uint64_t{flag} << 32;
    store_word(at, above | (value & 0xffffffffu), order);
    store_word(at + 8, above | value >> 32, order);
}

// Whether the packet with this flag is there; then also what it carries.
inline bool load_packet(const char* at, std::uint32_t flag, std::uint64_t& value,
                        Order order = Order::acquire) {
    const std::uint64_t low = load_word(at, order);
    const std::uint64_t high = load_word(at + 8, order);
    if (low >> 32 != flag || high >> 32 != flag) return false;
    value = (low & 0xffffffffu) | high << 32;
    return true;
}

// How bytes lie in a lane of an arena: in units of `stride` bytes with up to `payload` of them. What is left of
// the last 8 bytes is zero. load() tells whether the unit is there; then also what it carries.

struct PacketFormat {
    static constexpr std::uint64_t payload = 8;
    static constexpr std::uint64_t stride = packet_bytes;
    std::uint32_t flag;

    void store(char* at, const char* from, std::uint64_t bytes) const {
        std::uint64_t value = 0;
        std::memcpy(&value, from, bytes);
        store_packet(at, value, flag, Order::relaxed);
    }
    bool load(const char* at, char* to, std::uint64_t bytes) const {
        std::uint64_t value = 0;
        if (!load_packet(at, flag, value, Order::relaxed)) return false;
        std::memcpy(to, &value, bytes);
        return true;
    }
};

// Threads of a host have no store of 128 bytes: the flag is stored after the payload, and loaded before it.
struct LineFormat {
    static constexpr std::uint64_t payload = protocol::line_payload;
    static constexpr std::uint64_t stride = protocol::row_bytes / protocol::row_lines;
    static constexpr std::uint64_t flag_at = stride - 8;
    std::uint64_t flag;

    // Where a unit of 8 bytes lies.
    static constexpr std::uint64_t place_of(std::uint64_t unit) {
        return 8 * (unit < 8 ? 2 * unit : 2 * (unit - 8) + 1);
    }
    static_assert(8 * (payload / 8) == payload && 2 * (payload / 8 - 1 - 8) + 1 < 15);

    void store(char* at, const char* from, std::uint64_t bytes) const {
        for (std::uint64_t unit = 0; unit * 8 < bytes; ++unit) {
            std::uint64_t value = 0;
            std::memcpy(&value, from + unit * 8, std::min<std::uint64_t>(8, bytes - unit * 8));
            store_word(at + place_of(unit), value, Order::relaxed);
        }
        store_word(at + flag_at, flag);
    }
    bool load(const char* at, char* to, std::uint64_t bytes) const {
        if (load_word(at + flag_at) != flag) return false;
        for (std::uint64_t unit = 0; unit * 8 < bytes; ++unit) {
            const std::uint64_t value = load_word(at + place_of(unit), Order::relaxed);
            std::memcpy(to + unit * 8, &value, std::min<std::uint64_t>(8, bytes - unit * 8));
        }
        return true;
    }
};

// The data is its own flag: four words, each of which arrives as a whole, and none of which is ever sent as what
// an empty lane holds.
struct LamportFormat {
    static constexpr std::uint64_t payload = protocol::lamport_unit;
    static constexpr std::uint64_t stride = payload;

    static std::atomic_ref<std::uint32_t> word(const char* at, std::uint64_t number) {
        return std::atomic_ref(reinterpret_cast<std::uint32_t*>(const_cast<char*>(at))[number]);
    }
    void store(char* at, const char* from, std::uint64_t bytes) const {
        std::uint32_t words[payload / 4] = {};
        std::memcpy(words, from, bytes);
        for (unsigned w = 0; w < payload / 4; ++w)
            word(at, w).store(words[w] == protocol::lamport_empty ? protocol::lamport_instead : words[w],
                              Order::relaxed);
    }
    bool load(const char* at, char* to, std::uint64_t bytes) const {
        std::uint32_t words[payload / 4];
        for (unsigned w = 0; w < payload / 4; ++w) {
            words[w] = word(at, w).load(Order::relaxed);
            if (words[w] == protocol::lamport_empty) return false;
        }
        std::memcpy(to, words, bytes);
        return true;
    }
    static void empty(char* lane, std::uint64_t units) {
        for (std::uint64_t w = 0; w < units * payload / 4; ++w)
            word(lane, w).store(protocol::lamport_empty, Order::relaxed);
    }
};

// The 64 bytes that open a task between two ranks, as packets.
struct Line {
    std::uint64_t first = 0;   // slices: the send token; pairs: where to, as a token
    std::uint64_t second = 0;  // slices: the receive token; pairs: bytes
    std::uint64_t signature = 0;
    std::uint64_t scale = 0;
};

inline void store_line(char* at, const Line& line, std::uint32_t flag) {
    store_packet(at, line.first, flag);
    store_packet(at + packet_bytes, line.second, flag);
    store_packet(at + 2 * packet_bytes, line.signature, flag);
    store_packet(at + 3 * packet_bytes, line.scale, flag);
}

inline bool load_line(const char* at, std::uint32_t flag, Line& line) {
    return load_packet(at, flag, line.first) && load_packet(at + packet_bytes, flag, line.second) &&
           load_packet(at + 2 * packet_bytes, flag, line.signature) &&
           load_packet(at + 3 * packet_bytes, flag, line.scale);
}

inline std::uint64_t to_word(protocol::Token token) {
    return std::uint64_t{token.slot} << 48 | token.offset;
}
inline protocol::Token to_token(std::uint64_t word) {
    return {static_cast<std::uint16_t>(word >> 48), word & ((std::uint64_t{1} << 48) - 1)};
}

}  // namespace sidestep::backends::host
