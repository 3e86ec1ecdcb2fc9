// What both ends of a queue pair tell each other over the socket before it can carry anything.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <sidestep/result.hpp>
#include "backend/nearness.hpp"

namespace sidestep::backends::verbs {

enum class LinkLayer : std::uint8_t { infiniband = 1, ethernet = 2 };

using Gid = std::array<unsigned char, 16>;
bool is_ipv4(const Gid& gid);

// One end. The numbers are those of libibverbs.
struct Greeting {
    std::uint32_t queue_pair = 0;    // 24 bits, not 0
    std::uint32_t first_packet = 0;  // 24 bits
    Gid gid{};
    std::uint16_t lid = 0;
    std::uint8_t mtu = 0;  // 1: 256 bytes, and so on to 5: 4096
    LinkLayer layer = LinkLayer::ethernet;
    std::uint32_t eager = 0;       // bytes that fit behind a frame in one buffer
    std::uint16_t receives = 0;    // messages that may wait unread
    std::uint16_t offers = 0;      // that may be open at a time
    backend::GpuDistances gpus{};  // from the card

    bool operator==(const Greeting&) const = default;
};

constexpr std::size_t greeting_bytes = 48 + backend::most_told_gpus;
// Bounds of what another end may say.
// The list of places of a scatter fits into one buffer, and so comes before what it is of.
constexpr std::uint32_t least_eager = 4096, most_eager = 64 << 10;
constexpr std::uint16_t least_receives = 4, most_receives = 4096, most_offers = 1024;

std::array<unsigned char, greeting_bytes> to_bytes(const Greeting& greeting);
// io_error for bytes that are no greeting, or of another version, or one that makes no sense.
Result<Greeting> parse_greeting(const unsigned char* bytes);

// What both ends keep to. io_error where they cannot be joined.
Result<Greeting> agree(const Greeting& mine, const Greeting& theirs);

// One line of a card's table of addresses.
struct GidEntry {
    int index = 0;
    Gid gid{};
    std::string type;  // "RoCE v2", "IB/RoCE v1", as the kernel says
};

// RoCE v2 over IPv4 first, then over IPv6 but link-local, then link-local. not_found where there is none of version 2.
Result<GidEntry> choose_gid(const std::vector<GidEntry>& table, const std::string& card);
// "fe80:0000:0000:0000:0000:00ff:fe00:0001", as in sysfs.
Result<Gid> parse_gid(const std::string& text);

}  // namespace sidestep::backends::verbs
