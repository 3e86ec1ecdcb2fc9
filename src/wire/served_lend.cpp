// What a client lets another machine have, and what it has this one fetch from there.
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "wire/peers.hpp"
#include "wire/served.hpp"
#include "wire/trial.hpp"

namespace sidestep::wire {

Result<std::string> Served::lend(std::string_view body) {
    SIDESTEP_TRY(const std::uint64_t region, parse_number(body));
    if (region != 0) SIDESTEP_CHECK(held(body));
    SIDESTEP_TRY(const std::string token, node_->lent.lend(*node_->tls, {weak_from_this(), region}));
    return to_body(token);
}

// The file that the other client has open, or its memory; but by slots of this client's.
Result<std::string> Served::take(std::string_view body) {
    SIDESTEP_TRY(const std::string token, parse_token(body));
    SIDESTEP_TRY(const Lent::Region lent, node_->lent.take(token));
    if (lent.number == 0) return to_body(Attached{});
    const auto client = lent.client.lock();
    SIDESTEP_TRY(const Held theirs,
                 client ? client->held(to_body(lent.number))
                        : Result<Held>(Error{ErrorCode::not_found, "its client is gone", "node", {}}));
    if (!theirs.found)
        return Error{ErrorCode::invalid_argument, "that region is not lent", theirs.region->name, {}};
    Attached attached;
    SIDESTEP_TRY(Held mine, make_ready(theirs.found, theirs.request, attached.way, theirs.registration));
    return grant(std::move(mine), std::move(attached));
}

Result<std::string> Served::reach(std::string_view body) {
    SIDESTEP_TRY(const ReachRequest request, parse_reach(body));
    SIDESTEP_TRY(auto at, parse_addresses(request.addresses));
    SIDESTEP_TRY(const auto peer, node_->neighbours->get({request.addresses, std::move(at)}));
    // Whoever asks had its own bytes encrypted: these are too, or they go another way.
    if (encrypted() && !peer->encrypted())
        return Error{ErrorCode::unsupported,
                     fmt::format("what goes from {} to {} is not encrypted", node_->name, request.addresses),
                     "network", "start one of both with --encrypt"};
    SIDESTEP_TRY(const std::string answer, peer->ask(Word::take, to_body(request.token), Peers::in_time()));
    SIDESTEP_TRY(const Attached there, parse_attached(answer));
    if (there.region == 0) return to_body(Attached{0, peer->engine_words()});
    Held held{std::make_shared<Region>(), nullptr, nullptr, {}};
    Region& region = *held.region;
    region.keeps = std::shared_ptr<const void>(peer.get(), [peer, number = there.region](const void*) {
        peer->tell(Word::detach, to_body(number));
    });
    SIDESTEP_TRY(region.beyond, peer->session(request.size, Peers::in_time()));
    region.size = request.size;
    region.target = there.region;
    region.name = request.addresses;
    held.beyond = peer;
    return grant(std::move(held), Attached{0, peer->engine_words()});
}

Result<std::string> Served::trial() {
    struct Memory {
        std::vector<std::uint64_t> bytes = std::vector<std::uint64_t>(trial_bytes / sizeof(std::uint64_t));
        std::vector<std::shared_ptr<const void>> ready;
    };
    const auto memory = std::make_shared<Memory>();
    memory->ready = node_->prepare(memory->bytes.data(), trial_bytes);
    Held held{std::make_shared<Region>(), nullptr, nullptr, {}};
    Region& region = *held.region;
    region.size = trial_bytes;
    region.readable = region.writable = true;
    region.address = reinterpret_cast<unsigned char*>(memory->bytes.data());
    region.keeps = memory;
    region.name = "memory to try the link out";
    return grant(std::move(held), {});
}

}  // namespace sidestep::wire
