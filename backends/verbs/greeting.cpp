#include "backends/verbs/greeting.hpp"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "backends/verbs/numbers.hpp"

namespace sidestep::backends::verbs {
namespace {

constexpr std::uint32_t greeting_magic = 0x42565353;  // "SSVB"
constexpr std::uint16_t greeting_version = 2;
constexpr std::uint32_t most_24_bits = (1u << 24) - 1;

Error no_greeting(std::string why) {
    return Error{
        ErrorCode::io_error, "the other machine's RDMA greeting is wrong: " + std::move(why), "verbs", {}};
}

bool is_zero(const Gid& gid) {
    return std::all_of(gid.begin(), gid.end(), [](unsigned char byte) { return byte == 0; });
}

int rank_of(const GidEntry& entry) {
    if (is_ipv4(entry.gid)) return 0;
    const bool link_local = entry.gid[0] == 0xfe && (entry.gid[1] & 0xc0) == 0x80;
    return link_local ? 2 : 1;
}

Result<void> check_values(const Greeting& greeting) {
    if (greeting.queue_pair == 0 || greeting.queue_pair > most_24_bits) return no_greeting("no queue pair");
    if (greeting.first_packet > most_24_bits) return no_greeting("a packet number of more than 24 bits");
    if (greeting.mtu < 1 || greeting.mtu > 5) return no_greeting(fmt::format("packet size {}", greeting.mtu));
    if (greeting.layer != LinkLayer::infiniband && greeting.layer != LinkLayer::ethernet)
        return no_greeting(fmt::format("link layer {}", static_cast<int>(greeting.layer)));
    if (greeting.layer == LinkLayer::ethernet && is_zero(greeting.gid))
        return no_greeting("no address (GID)");
    if (greeting.layer == LinkLayer::infiniband && greeting.lid == 0 && is_zero(greeting.gid))
        return no_greeting("neither LID nor GID");
    if (greeting.eager < least_eager || greeting.eager > most_eager)
        return no_greeting(fmt::format("buffers of {} bytes", greeting.eager));
    if (greeting.receives < least_receives || greeting.receives > most_receives)
        return no_greeting(fmt::format("{} buffers", greeting.receives));
    if (greeting.offers < 1 || greeting.offers > most_offers)
        return no_greeting(fmt::format("{} offers", greeting.offers));
    if (std::ranges::max(greeting.gpus) > backend::longest_distance)
        return no_greeting("a GPU farther away than any is");
    return {};
}

}  // namespace

bool is_ipv4(const Gid& gid) {
    return std::all_of(gid.begin(), gid.begin() + 10, [](unsigned char byte) { return byte == 0; }) &&
           gid[10] == 0xff && gid[11] == 0xff;
}

std::array<unsigned char, greeting_bytes> to_bytes(const Greeting& greeting) {
    std::array<unsigned char, greeting_bytes> bytes{};
    unsigned char* const at = bytes.data();
    put_number(at, greeting_magic);
    put_number(at + 4, greeting_version);
    put_number(at + 6, static_cast<std::uint16_t>(greeting_bytes));
    put_number(at + 8, greeting.queue_pair);
    put_number(at + 12, greeting.first_packet);
    std::copy(greeting.gid.begin(), greeting.gid.end(), at + 16);
    put_number(at + 32, greeting.lid);
    at[34] = greeting.mtu;
    at[35] = static_cast<unsigned char>(greeting.layer);
    put_number(at + 36, greeting.eager);
    put_number(at + 40, greeting.receives);
    put_number(at + 42, greeting.offers);
    std::copy(greeting.gpus.begin(), greeting.gpus.end(), at + 48);
    return bytes;
}

Result<Greeting> parse_greeting(const unsigned char* bytes) {
    if (get_number<std::uint32_t>(bytes) != greeting_magic) return no_greeting("it is none");
    if (const auto theirs = get_number<std::uint16_t>(bytes + 4); theirs != greeting_version) {
        Error error = no_greeting(fmt::format("version {} instead of {}", theirs, greeting_version));
        error.hint = "use the same version of sidestep on both machines";
        return error;
    }
    if (get_number<std::uint16_t>(bytes + 6) != greeting_bytes) return no_greeting("another size");
    if (get_number<std::uint32_t>(bytes + 44) != 0) return no_greeting("bytes that mean nothing");
    Greeting greeting;
    greeting.queue_pair = get_number<std::uint32_t>(bytes + 8);
    greeting.first_packet = get_number<std::uint32_t>(bytes + 12);
    std::copy(bytes + 16, bytes + 32, greeting.gid.begin());
    greeting.lid = get_number<std::uint16_t>(bytes + 32);
    greeting.mtu = bytes[34];
    greeting.layer = static_cast<LinkLayer>(bytes[35]);
    greeting.eager = get_number<std::uint32_t>(bytes + 36);
    greeting.receives = get_number<std::uint16_t>(bytes + 40);
    greeting.offers = get_number<std::uint16_t>(bytes + 42);
    std::copy(bytes + 48, bytes + greeting_bytes, greeting.gpus.begin());
    if (auto checked = check_values(greeting); !checked) return checked.error();
    return greeting;
}

Result<Greeting> agree(const Greeting& mine, const Greeting& theirs) {
    if (mine.layer != theirs.layer)
        return Error{ErrorCode::io_error, "one machine's RDMA card is of InfiniBand, the other's of Ethernet",
                     "verbs", "name cards of one kind on both machines"};
    Greeting agreed = theirs;
    agreed.mtu = std::min(mine.mtu, theirs.mtu);
    agreed.eager = std::min(mine.eager, theirs.eager);
    agreed.offers = std::min(mine.offers, theirs.offers);
    return agreed;
}

Result<GidEntry> choose_gid(const std::vector<GidEntry>& table, const std::string& card) {
    const GidEntry* best = nullptr;
    for (const GidEntry& entry : table) {
        if (entry.type != "RoCE v2" || is_zero(entry.gid)) continue;
        if (best == nullptr || rank_of(entry) < rank_of(*best)) best = &entry;
    }
    if (best != nullptr) return *best;
    return Error{ErrorCode::not_found, fmt::format("the RDMA card {} has no address of RoCE version 2", card),
                 "verbs",
                 "give its network device an IP address and bring it up (ip address add, ip link set up)"};
}

Result<Gid> parse_gid(const std::string& text) {
    constexpr std::size_t length = 39;
    if (text.size() != length) return no_greeting("GID " + text);
    Gid gid{};
    std::size_t at = 0;
    for (std::size_t i = 0; i < 8; ++i) {
        if (i > 0 && text[at - 1] != ':') return no_greeting("GID " + text);
        char* end = nullptr;
        const std::string word = text.substr(at, 4);
        const unsigned long value = std::strtoul(word.c_str(), &end, 16);
        if (end != word.c_str() + 4) return no_greeting("GID " + text);
        gid[2 * i] = static_cast<unsigned char>(value >> 8);
        gid[2 * i + 1] = static_cast<unsigned char>(value & 0xff);
        at += 5;
    }
    return gid;
}

}  // namespace sidestep::backends::verbs
