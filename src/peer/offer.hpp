// What a publisher tells whoever connects: one message, in which every field is checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <sidestep/memory_kind.hpp>
#include <sidestep/place.hpp>
#include <sidestep/units.hpp>

namespace sidestep::peer {

// Tells one publisher from any other, of this process or another, now or before.
using PublisherId = std::array<unsigned char, 16>;

struct MemoryOffer {
    PublisherId publisher{};
    std::string scheme;  // at most 32 bytes
    std::string handle;  // at most 1 KiB
    Place place;         // host or gpu, of this machine
    MemoryKind memory = MemoryKind::device;
    Bytes size = 0;               // above 0; of what is published, which starts `offset` bytes
    Bytes offset = 0;             // into what the handle opens
    std::uint64_t identity = 0;   // of the memory: another one where an address was given out again
    std::uint64_t address = 0;    // of the first published byte, in the publisher's own address space
    bool has_descriptor = false;  // one comes with the message
};

// Bytes that hold any offer.
constexpr std::size_t longest_offer = 2048;

// The message; fields that do not fit are an error.
Result<std::string> to_message(const MemoryOffer& offer);

// ErrorCode::unsupported for a message of another version, io_error for one that makes no sense.
Result<MemoryOffer> parse_offer(std::string_view message);

}  // namespace sidestep::peer
