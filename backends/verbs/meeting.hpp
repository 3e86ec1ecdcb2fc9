// Which of their cards two machines join for a rail: both come to the same answer by themselves.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backends/verbs/greeting.hpp"

namespace sidestep::backends::verbs {

struct CardAddress {
    LinkLayer layer = LinkLayer::ethernet;
    Gid gid{};
    bool operator==(const CardAddress&) const = default;
};

// What one end says of itself over the socket, before there is a queue pair.
struct Meeting {
    std::uint32_t lot = 0;           // any number: the end with the lower one says which rail it is
    std::uint16_t rail = 0;          // of the link, from 0 on
    std::vector<CardAddress> cards;  // that can be used now, 1 to most_cards
    bool operator==(const Meeting&) const = default;
};

constexpr std::size_t most_cards = 8;
constexpr std::size_t meeting_bytes = 16 + most_cards * 17;

std::array<unsigned char, meeting_bytes> to_bytes(const Meeting& meeting);
// io_error for bytes that are no meeting, or of another version.
Result<Meeting> parse_meeting(const unsigned char* bytes);

// Positions in both lists.
struct JoinedCards {
    std::size_t mine = 0;
    std::size_t theirs = 0;
    bool operator==(const JoinedCards&) const = default;
};
// Each card is paired with the one whose address has most in common with its own: they are of one network, where each card has
// its own. Rails take the pairs in turns. io_error where none are of one kind.
Result<JoinedCards> choose_cards(const Meeting& mine, const Meeting& theirs);

}  // namespace sidestep::backends::verbs
