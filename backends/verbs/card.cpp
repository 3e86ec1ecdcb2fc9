#include "backends/verbs/card.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backends/verbs/meeting.hpp"
#include "base/try.hpp"

namespace sidestep::backends::verbs {
namespace {

std::string line_of(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// The kernel refuses to tell the type of an entry that is not in use. It fills the table from its beginning; some
// have a thousand.
constexpr int most_unused = 32;

std::vector<GidEntry> read_table(const std::string& folder, int port, int entries) {
    std::vector<GidEntry> table;
    int unused = 0;
    for (int index = 0; index < entries; ++index) {
        const std::string part = fmt::format("{}/ports/{}/", folder, port);
        GidEntry entry;
        entry.index = index;
        entry.type = line_of(fmt::format("{}gid_attrs/types/{}", part, index));
        if (entry.type.empty() && ++unused >= most_unused) break;
        if (entry.type.empty()) continue;
        const auto gid = parse_gid(line_of(fmt::format("{}gids/{}", part, index)));
        if (!gid) continue;
        entry.gid = *gid;
        table.push_back(std::move(entry));
    }
    return table;
}

Result<Card> use_port(const driver::SharedVerbsContext& context, std::uint8_t number) {
    SIDESTEP_TRY(const ibv_port_attr port, context->port(number));
    if (port.state != IBV_PORT_ACTIVE)
        return Error{
            ErrorCode::unsupported,
            fmt::format("port {} of the RDMA card {} is down", number, context->name()), "verbs",
            "plug in its cable and bring its network device up (ip link set up), or start a subnet manager"};
    Card card;
    card.context = context;
    card.port = number;
    card.lid = port.lid;
    card.mtu = static_cast<std::uint8_t>(port.active_mtu);
    card.layer = port.link_layer == IBV_LINK_LAYER_ETHERNET ? LinkLayer::ethernet : LinkLayer::infiniband;
    const auto table = read_table(context->folder(), number, port.gid_tbl_len);
    if (card.layer == LinkLayer::ethernet) {
        SIDESTEP_TRY(card.gid, choose_gid(table, context->name()));
    } else if (!table.empty()) {
        card.gid = table.front();
    }
    return card;
}

Result<Card> use_card(const driver::SharedVerbs& verbs, const std::string& name, int port) {
    SIDESTEP_TRY(const auto context, driver::VerbsContext::open(verbs, name));
    SIDESTEP_TRY(const ibv_device_attr limits, context->limits());
    if (port < 0 || port > limits.phys_port_cnt)
        return Error{ErrorCode::invalid_argument, fmt::format("the RDMA card {} has no port {}", name, port),
                     "verbs", fmt::format("its ports are 1 to {}", limits.phys_port_cnt)};
    if (port > 0) return use_port(context, static_cast<std::uint8_t>(port));
    std::optional<Error> first;
    for (std::uint8_t number = 1; number <= limits.phys_port_cnt; ++number) {
        auto card = use_port(context, number);
        if (card) return card;
        if (!first) first = card.error();
    }
    if (first) return *first;
    return Error{ErrorCode::unsupported, fmt::format("the RDMA card {} has no port", name), "verbs", {}};
}

}  // namespace

Result<Card> look_again(const Card& card) {
    return use_port(card.context, card.port);
}

bool port_is_up(const Card& card) {
    const auto port = card.context->port(card.port);
    return port && port->state == IBV_PORT_ACTIVE;
}

Result<OpenedCards> open_cards(const Options& options) {
    SIDESTEP_TRY(const driver::SharedVerbs verbs, driver::Verbs::load(options.library));
    SIDESTEP_TRY(const auto names, driver::VerbsContext::names(*verbs));
    if (names.empty())
        return Error{
            ErrorCode::not_found, "this machine has no RDMA card that libibverbs knows", "verbs",
            "install ibverbs-providers and load the card's driver (rdma link shows what the kernel has)"};
    for (const std::string& name : options.cards)
        if (std::find(names.begin(), names.end(), name) == names.end())
            return Error{ErrorCode::not_found, fmt::format("this machine has no RDMA card {}", name), "verbs",
                         fmt::format("it has {}", fmt::join(names, ", "))};
    OpenedCards opened;
    std::optional<Error> first;
    for (const std::string& name : names) {
        const bool named = std::find(options.cards.begin(), options.cards.end(), name) != options.cards.end();
        if (!named && !options.cards.empty()) {
            opened.left_out.push_back({name, "others were named"});
            continue;
        }
        auto card = use_card(verbs, name, options.port);
        if (!card && named) return card.error();
        if (!card && !first) first = card.error();
        if (!card)
            opened.left_out.push_back({name, card.error().message});
        else if (opened.cards.size() < most_cards)
            opened.cards.push_back(std::move(*card));
        else
            opened.left_out.push_back({name, fmt::format("no more than {} are used", most_cards)});
    }
    if (opened.cards.empty()) return *first;
    return opened;
}

}  // namespace sidestep::backends::verbs
