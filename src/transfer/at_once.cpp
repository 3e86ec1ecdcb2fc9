// Copies too small for a Movement: nothing of them is ever in flight.
#include "base/log.hpp"
#include "transfer/movement.hpp"

namespace sidestep::transfer {
namespace {

using Clock = Activity::Clock;

// Of more bytes none is done at once, and what follows need not be asked.
constexpr Bytes largest = Bytes{1} << 20;

bool is_here(const Place& place) {
    return place.is_host() && place.node().empty();
}

// Pieces that are done at once do not call it.
struct NoOwner final : backend::PieceOwner {
    void ended() override {}
};

Result<backend::Progress> move(const ReadyHop& hop, const Ends& ends) {
    backend::AttachOptions options;
    options.access = backend::Access::read;
    SIDESTEP_TRY(const auto from, hop.backend->attach(ends.from, options));
    options.access = backend::Access::write;
    SIDESTEP_TRY(const auto to, hop.backend->attach(ends.to, options));
    backend::Piece piece;
    piece.from = from.get();
    piece.to = to.get();
    piece.size = ends.bytes;
    piece.capability = hop.capability;
    NoOwner owner;
    backend::Flight flight(owner);
    return hop.backend->start(piece, flight);
}

}  // namespace

// What is refused, or was asked for more, is left to a Movement, which says it.
std::shared_ptr<Activity> copy_at_once(Machine& machine, const Buffer& from, const Buffer& to,
                                       const CopyOptions& options) {
    if (from.size() == 0 || from.size() > largest || !is_here(from.place()) || !is_here(to.place()))
        return nullptr;
    if (options.verify || options.prefer != Prefer::automatic || base::logs(base::LogLevel::debug))
        return nullptr;
    const auto begun = Clock::now();
    const auto ends = resolve_ends(machine.topology, machine.registry, from, to);
    if (!ends) return nullptr;
    const auto plan = machine.plans.get(*ends, options);
    if (!plan || (*plan)->lanes.size() != 1 || (*plan)->lanes[0].size() != 1) return nullptr;
    const ReadyHop& hop = (*plan)->lanes[0][0];
    if (ends->bytes > hop.at_once || !move(hop, *ends)) return nullptr;
    Receipt receipt;
    receipt.bytes = ends->bytes;
    receipt.route = std::shared_ptr<const Route>(*plan, &(*plan)->route);
    receipt.lane_bytes = {ends->bytes};
    receipt.lane_failures.resize(1);
    receipt.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    return std::make_shared<EndedActivity>(std::move(receipt));
}

}  // namespace sidestep::transfer
