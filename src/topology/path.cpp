// The search for walks. One search looks at every link of the two machines, and of the switches between them,
// at most twice per pass and keeps nothing, so that a cluster of a hundred thousand GPUs needs no table of
// pairs.
#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep {

namespace {

constexpr std::uint32_t no_link = std::numeric_limits<std::uint32_t>::max();
constexpr double unreached = std::numeric_limits<double>::infinity();

bool passes_through(DeviceKind kind) {
    return kind != DeviceKind::gpu && kind != DeviceKind::drive;
}

// Topology::links_of(), which is its own.
struct LinksOf {
    std::span<const std::uint32_t> begin;
    std::span<const std::uint32_t> links;

    std::span<const std::uint32_t> operator[](DeviceId id) const {
        return links.subspan(begin[id], begin[id + 1] - begin[id]);
    }
};

// Where a walk stands: a device, and whether it came into a redirecting switch from below, so that it can
// only leave upwards.
using Stand = std::uint64_t;
Stand stand_at(DeviceId device, bool upwards) {
    return (Stand{device} << 1) | (upwards ? 1 : 0);
}
DeviceId device_of(Stand stand) {
    return static_cast<DeviceId>(stand >> 1);
}
bool goes_upwards(Stand stand) {
    return (stand & 1) != 0;
}

// Walks from `from` to `to`, over links that `fabric` carries and that are not in `taken`.
class Search {
public:
    Search(const Topology& topology, LinksOf links_of, DeviceId from, DeviceId to, Fabric fabric)
        : topology_(topology), links_of_(links_of), from_(from), to_(to), fabric_(fabric) {}

    // The widest walk, of equally wide ones the quickest, of equally quick ones that with the fewest
    // links. Two passes, since a search that carries (width, latency) along can miss the quickest: the
    // widest way to a device in the middle need not be the quickest one that is wide enough.
    std::optional<Path> best() const {
        const double width = widest();
        if (width <= 0) return std::nullopt;
        return quickest(width);
    }

    // Leaves out the links of a walk in later searches.
    void take(const Path& path) { taken_.insert(taken_.end(), path.links.begin(), path.links.end()); }

private:
    // Calls visit(link, next stand) for every link a walk may go on with.
    template <typename Visit>
    void each_next(Stand stand, Visit visit) const;
    bool carries(LinkKind kind) const;
    // Whether a walk at `at`, which is not its start, may go on over `link`.
    bool leaves_by(const Device& at, const Link& link) const;
    // The machines at both ends, and what machines share.
    bool in_reach(const Device& device) const;

    double widest() const;
    Path quickest(double at_least) const;
    Path walk_back(const std::unordered_map<Stand, std::pair<std::uint32_t, Stand>>& came_by, Stand end,
                   double latency) const;

    const Topology& topology_;
    LinksOf links_of_;
    DeviceId from_;
    DeviceId to_;
    Fabric fabric_;
    std::vector<std::uint32_t> taken_;  // short: a GPU has a few dozen links
};

bool Search::carries(LinkKind kind) const {
    const bool nvlink = kind == LinkKind::nvlink || kind == LinkKind::xgmi;
    if (kind == LinkKind::network)
        return fabric_ == Fabric::any && topology_.device(from_).node != topology_.device(to_).node;
    if (fabric_ == Fabric::any) return true;
    if (fabric_ == Fabric::nvlink) return nvlink;
    return kind == LinkKind::pcie || kind == LinkKind::socket;
}

bool Search::leaves_by(const Device& at, const Link& link) const {
    // An NVSwitch forwards NVLink traffic only; its PCIe link is for management.
    if (at.kind == DeviceKind::nvswitch) return link.kind == LinkKind::nvlink || link.kind == LinkKind::xgmi;
    // A network card takes bytes out of the machine they start in, and into the one they end in.
    if (at.kind == DeviceKind::nic)
        return (link.kind == LinkKind::network) == (at.node == topology_.device(from_).node);
    return true;
}

bool Search::in_reach(const Device& device) const {
    return device.node == topology_.device(from_).node || device.node == topology_.device(to_).node ||
           device.node < 0;
}

template <typename Visit>
void Search::each_next(Stand stand, Visit visit) const {
    const DeviceId id = device_of(stand);
    const Device& at = topology_.device(id);
    if (id != from_ && !passes_through(at.kind)) return;
    const auto up = topology_.parent(id);
    for (const std::uint32_t position : links_of_[id]) {
        const Link& link = topology_.links()[position];
        const DeviceId next = link.a == id ? link.b : link.a;
        const Device& there = topology_.device(next);
        if (!carries(link.kind) || !in_reach(there)) continue;
        if (id != from_ && !leaves_by(at, link)) continue;
        // A card of this machine that is not an end of the walk leads to other machines only.
        if (there.kind == DeviceKind::nic && next != to_ &&
            topology_.device(from_).node == topology_.device(to_).node)
            continue;
        if (goes_upwards(stand) && next != up) continue;
        if (std::find(taken_.begin(), taken_.end(), position) != taken_.end()) continue;
        visit(position, stand_at(next, there.acs_redirect && topology_.parent(id) == next));
    }
}

// The rate of the widest walk, 0 where there is none.
double Search::widest() const {
    std::unordered_map<Stand, double> width;
    std::priority_queue<std::pair<double, Stand>> open;
    const Stand start = stand_at(from_, false);
    width[start] = unreached;
    open.emplace(unreached, start);
    while (!open.empty()) {
        const auto [reached, at] = open.top();
        open.pop();
        if (device_of(at) == to_) return reached;
        if (reached < width[at]) continue;
        each_next(at, [&, through = reached](std::uint32_t position, Stand next) {
            const double now = std::min(through, topology_.links()[position].gb_per_s);
            double& best = width[next];
            if (now <= best) return;
            best = now;
            open.emplace(now, next);
        });
    }
    return 0;
}

// The quickest walk over links of at least that rate; there is one.
Path Search::quickest(double at_least) const {
    using Cost = std::pair<double, int>;  // latency, links
    std::unordered_map<Stand, Cost> cost;
    std::unordered_map<Stand, std::pair<std::uint32_t, Stand>> came_by;
    std::priority_queue<std::pair<Cost, Stand>, std::vector<std::pair<Cost, Stand>>, std::greater<>> open;
    Stand end = stand_at(from_, false);
    cost[end] = {0, 0};
    open.emplace(cost[end], end);
    while (!open.empty()) {
        const auto [so_far, at] = open.top();
        open.pop();
        end = at;
        if (device_of(at) == to_) break;
        if (so_far > cost[at]) continue;
        each_next(at, [&, spent = so_far, here = at](std::uint32_t position, Stand next) {
            const Link& link = topology_.links()[position];
            if (link.gb_per_s < at_least) return;
            const Cost now{spent.first + link.latency_us, spent.second + 1};
            const auto known = cost.find(next);
            if (known != cost.end() && now >= known->second) return;
            cost[next] = now;
            came_by[next] = {position, here};
            open.emplace(now, next);
        });
    }
    Path path = walk_back(came_by, end, cost[end].first);
    path.gb_per_s = at_least;
    return path;
}

Path Search::walk_back(const std::unordered_map<Stand, std::pair<std::uint32_t, Stand>>& came_by, Stand end,
                       double latency) const {
    Path path;
    path.latency_us = latency;
    path.all_nvlink = true;
    path.nvlinks = std::numeric_limits<int>::max();
    for (Stand at = end; device_of(at) != from_;) {
        const auto& [position, before] = came_by.at(at);
        const Link& link = topology_.links()[position];
        path.links.push_back(position);
        path.all_nvlink = path.all_nvlink && (link.kind == LinkKind::nvlink || link.kind == LinkKind::xgmi);
        path.nvlinks = std::min(path.nvlinks, link.width);
        at = before;
    }
    if (!path.all_nvlink) path.nvlinks = 0;
    std::reverse(path.links.begin(), path.links.end());
    return path;
}

// All NVLink walks between two GPUs that share no link, as one path: the GPUs stripe over them. The
// latency is that of the slowest walk.
std::optional<Path> nvlink_bundle(Search search) {
    auto bundle = search.best();
    if (!bundle) return std::nullopt;
    search.take(*bundle);
    // Ends, since every walk takes a link of the first GPU away.
    while (const auto next = search.best()) {
        bundle->gb_per_s += next->gb_per_s;
        bundle->nvlinks += next->nvlinks;
        bundle->latency_us = std::max(bundle->latency_us, next->latency_us);
        search.take(*next);
    }
    return bundle;
}

}  // namespace

bool Path::redirected() const {
    std::vector<std::uint32_t> sorted = links;
    std::sort(sorted.begin(), sorted.end());
    return std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
}

std::optional<Path> Topology::path(DeviceId a, DeviceId b, Fabric fabric) const {
    if (a >= parts_.devices.size() || b >= parts_.devices.size()) return std::nullopt;
    if (a == b) return Path{};

    const bool two_gpus = device(a).kind == DeviceKind::gpu && device(b).kind == DeviceKind::gpu;
    const LinksOf links{links_begin_, links_of_};
    std::optional<Path> bundle;
    if (two_gpus && fabric != Fabric::pcie) {
        bundle = nvlink_bundle(Search(*this, links, a, b, Fabric::nvlink));
        if (fabric == Fabric::nvlink) return bundle;
    }
    auto walk = Search(*this, links, a, b, fabric).best();
    if (bundle && walk && bundle->gb_per_s >= walk->gb_per_s) return bundle;
    return walk;
}

}  // namespace sidestep
