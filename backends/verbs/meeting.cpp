#include "backends/verbs/meeting.hpp"

#include <algorithm>
#include <bit>
#include <tuple>

#include "backends/verbs/numbers.hpp"

namespace sidestep::backends::verbs {
namespace {

constexpr std::uint32_t meeting_magic = 0x4d565353;  // "SSVM"
constexpr std::uint16_t meeting_version = 1;
constexpr std::size_t card_bytes = 17, head = 16;

Error no_meeting(const char* why) {
    return Error{ErrorCode::io_error,
                 std::string("the other machine does not say which RDMA cards it has: ") + why, "verbs",
                 "use the same version of sidestep on both machines"};
}

// Bits that two addresses have in common from their beginning on. What follows the network's half of an address that is no
// IPv4 one is the card's own number.
int in_common(const Gid& a, const Gid& b) {
    int bits = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const auto other = static_cast<unsigned char>(a[i] ^ b[i]);
        bits += std::countl_zero(other);
        if (other != 0) break;
    }
    return is_ipv4(a) && is_ipv4(b) ? bits : std::min(bits, 64);
}

struct Pair {
    int common = 0;
    std::size_t first = 0;
    std::size_t second = 0;
};

std::vector<Pair> pairs_of(const std::vector<CardAddress>& first, const std::vector<CardAddress>& second) {
    std::vector<Pair> all;
    for (std::size_t i = 0; i < first.size(); ++i)
        for (std::size_t j = 0; j < second.size(); ++j)
            if (first[i].layer == second[j].layer)
                all.push_back({in_common(first[i].gid, second[j].gid), i, j});
    std::stable_sort(all.begin(), all.end(),
                     [](const Pair& a, const Pair& b) { return a.common > b.common; });
    std::vector<Pair> chosen;
    for (const Pair& one : all)
        if (std::none_of(chosen.begin(), chosen.end(), [&](const Pair& other) {
                return other.first == one.first || other.second == one.second;
            }))
            chosen.push_back(one);
    std::sort(chosen.begin(), chosen.end(), [](const Pair& a, const Pair& b) { return a.first < b.first; });
    return chosen;
}

}  // namespace

std::array<unsigned char, meeting_bytes> to_bytes(const Meeting& meeting) {
    std::array<unsigned char, meeting_bytes> bytes{};
    unsigned char* at = bytes.data();
    put_number(at, meeting_magic);
    put_number(at + 4, meeting_version);
    put_number(at + 6, static_cast<std::uint16_t>(meeting.cards.size()));
    put_number(at + 8, meeting.lot);
    put_number(at + 12, meeting.rail);
    at += head;
    for (const CardAddress& card : meeting.cards) {
        *at = static_cast<unsigned char>(card.layer);
        std::copy(card.gid.begin(), card.gid.end(), at + 1);
        at += card_bytes;
    }
    return bytes;
}

Result<Meeting> parse_meeting(const unsigned char* bytes) {
    if (get_number<std::uint32_t>(bytes) != meeting_magic) return no_meeting("it says something else");
    if (get_number<std::uint16_t>(bytes + 4) != meeting_version) return no_meeting("another version");
    const std::size_t count = get_number<std::uint16_t>(bytes + 6);
    if (count < 1 || count > most_cards) return no_meeting("no card, or too many");
    if (get_number<std::uint16_t>(bytes + 14) != 0) return no_meeting("bytes that mean nothing");
    Meeting meeting;
    meeting.lot = get_number<std::uint32_t>(bytes + 8);
    meeting.rail = get_number<std::uint16_t>(bytes + 12);
    for (std::size_t i = 0; i < most_cards; ++i) {
        const unsigned char* const at = bytes + head + i * card_bytes;
        if (i >= count) {
            if (std::any_of(at, at + card_bytes, [](unsigned char byte) { return byte != 0; }))
                return no_meeting("bytes behind the last card");
            continue;
        }
        CardAddress card;
        card.layer = static_cast<LinkLayer>(*at);
        if (card.layer != LinkLayer::infiniband && card.layer != LinkLayer::ethernet)
            return no_meeting("a card of no kind");
        std::copy(at + 1, at + card_bytes, card.gid.begin());
        meeting.cards.push_back(card);
    }
    return meeting;
}

Result<JoinedCards> choose_cards(const Meeting& mine, const Meeting& theirs) {
    const auto key = [](const Meeting& one) {
        std::vector<Gid> gids;
        for (const CardAddress& card : one.cards) gids.push_back(card.gid);
        return std::tuple(one.lot, one.rail, gids);
    };
    const bool first = key(mine) <= key(theirs);
    const auto pairs = first ? pairs_of(mine.cards, theirs.cards) : pairs_of(theirs.cards, mine.cards);
    if (pairs.empty())
        return Error{ErrorCode::io_error,
                     "one machine's RDMA cards are of InfiniBand, the other's of Ethernet", "verbs",
                     "use cards of one kind in both machines"};
    const Pair& pair = pairs[(first ? mine : theirs).rail % pairs.size()];
    return first ? JoinedCards{pair.first, pair.second} : JoinedCards{pair.second, pair.first};
}

}  // namespace sidestep::backends::verbs
