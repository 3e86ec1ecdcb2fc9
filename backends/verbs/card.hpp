// The RDMA card that an engine uses, and which of its ports and addresses.
#pragma once

#include <string>

#include <sidestep/units.hpp>

#include "backends/verbs/greeting.hpp"
#include "driver/verbs.hpp"

namespace sidestep::backends::verbs {

struct Options {
    std::string card;  // "mlx5_0"; empty: the first that can be used
    int port = 0;      // 0: the first that can be used
    std::string library = "libibverbs.so.1";
    Bytes most_pinned = 0;     // of what is prepared; 0: half of the machine's memory
    std::size_t bounces = 16;  // buffers of max_push bytes for memory that is not prepared, each way
};

struct Card {
    driver::SharedVerbsContext context;
    std::uint8_t port = 1;
    LinkLayer layer = LinkLayer::ethernet;
    GidEntry gid;
    std::uint16_t lid = 0;
    std::uint8_t mtu = 0;
};

// The first that fits. An error says in one sentence why there is none, and what to do.
Result<Card> open_card(const Options& options);

}  // namespace sidestep::backends::verbs
