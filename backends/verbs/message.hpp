// What the two ends of a queue pair send each other: frames, and what is needed to bring large ones over.
#pragma once

#include <array>
#include <cstdint>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::backends::verbs {

// A message begins with its head; what follows depends on its kind.
struct Head {
    enum class Kind : std::uint8_t {
        frame = 1,  // a frame, and what belongs to it
        offer,      // a frame whose bytes the sender keeps until it is told where they go
        here,       // the answer to an offer: write them to `address`
        nowhere,    // the answer to an offer: nobody wants them
        credits,    // nothing but `credits`
    };
    Kind kind = Kind::frame;
    std::uint16_t credits = 0;  // so many buffers are free again at the sender of this
    std::uint16_t offer = 0;    // the number of an offer
    std::uint64_t address = 0;
    std::uint32_t key = 0;

    bool operator==(const Head&) const = default;
};

constexpr std::size_t head_bytes = 24;

void to_bytes(const Head& head, unsigned char* to);
// io_error for bytes that are none.
Result<Head> parse_head(const unsigned char* bytes);

}  // namespace sidestep::backends::verbs
