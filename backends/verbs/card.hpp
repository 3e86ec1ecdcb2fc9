// The RDMA card that an engine uses, and which of its ports and addresses.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <sidestep/topology.hpp>

#include <sidestep/units.hpp>

#include "backend/nearness.hpp"
#include "backends/verbs/greeting.hpp"
#include "driver/verbs.hpp"

namespace sidestep::backends::verbs {

struct Options {
    std::vector<std::string> cards;  // "mlx5_0"; none: all that can be used
    int port = 0;                    // 0: the first of a card that can be used
    std::string library = "libibverbs.so.1";
    Bytes most_pinned = 0;  // of what is prepared; 0: half of the machine's memory
    std::size_t bounces =
        16;  // buffers of max_push bytes for memory that is not prepared, each way, of each card
    // Whoever was given such a buffer and has sent nothing to it for so long loses its link.
    std::chrono::milliseconds silence{15'000};
    const Topology* topology =
        nullptr;  // outlives the engine; null: no card is nearer to anything than another
};

// One port of it.
struct Card {
    driver::SharedVerbsContext context;
    std::uint8_t port = 1;
    LinkLayer layer = LinkLayer::ethernet;
    GidEntry gid;
    std::uint16_t lid = 0;
    std::uint8_t mtu = 0;
};

struct OpenedCards {
    std::vector<Card> cards;
    std::vector<backend::LeftOut> left_out;
};
// Those that can be used now, at most most_cards, and why others are not. An error says in one sentence why there is none, or
// not one that was named, and what to do.
Result<OpenedCards> open_cards(const Options& options);
// The card as it is at this moment, its addresses among it; why it cannot be used.
Result<Card> look_again(const Card& card);
bool port_is_up(const Card& card);

}  // namespace sidestep::backends::verbs
