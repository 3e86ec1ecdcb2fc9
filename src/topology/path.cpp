// The search for walks. One search looks at every link at most twice per pass and keeps nothing, so that
// a topology of a hundred thousand GPUs needs no table of pairs.
#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include <sidestep/topology.hpp>

namespace sidestep {

namespace {

constexpr std::uint32_t no_link = std::numeric_limits<std::uint32_t>::max();
constexpr double unreached = std::numeric_limits<double>::infinity();

bool carries(Fabric fabric, LinkKind kind) {
    switch (fabric) {
        case Fabric::any:
            return true;
        case Fabric::nvlink:
            return kind == LinkKind::nvlink;
        case Fabric::pcie:
            return kind == LinkKind::pcie || kind == LinkKind::socket;
    }
    return false;
}

bool passes_through(DeviceKind kind) {
    return kind != DeviceKind::gpu && kind != DeviceKind::nic && kind != DeviceKind::drive;
}

using LinksOf = std::vector<std::vector<std::uint32_t>>;

// Walks from `from` to `to`, over links that `fabric` carries and that are not in `taken`.
class Search {
public:
    Search(const Topology::Parts& parts, const LinksOf& links_of, DeviceId from, DeviceId to, Fabric fabric)
        : parts_(parts), links_of_(links_of), from_(from), to_(to), fabric_(fabric) {}

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
    // Calls visit(link, device at the other end) for every link a walk at `at` may go on with.
    template <typename Visit>
    void each_next(DeviceId at, Visit visit) const {
        const DeviceKind kind = parts_.devices[at].kind;
        if (at != from_ && !passes_through(kind)) return;
        for (const std::uint32_t position : links_of_[at]) {
            const Link& link = parts_.links[position];
            if (!carries(fabric_, link.kind)) continue;
            // An NVSwitch forwards NVLink traffic only; its PCIe link is for management.
            if (kind == DeviceKind::nvswitch && at != from_ && link.kind != LinkKind::nvlink) continue;
            if (std::find(taken_.begin(), taken_.end(), position) != taken_.end()) continue;
            visit(position, link.a == at ? link.b : link.a);
        }
    }

    double widest() const;
    Path quickest(double at_least) const;
    Path walk_back(const std::vector<std::uint32_t>& came_by, double latency) const;

    const Topology::Parts& parts_;
    const LinksOf& links_of_;
    DeviceId from_;
    DeviceId to_;
    Fabric fabric_;
    std::vector<std::uint32_t> taken_;  // short: a GPU has a few dozen links
};

// The rate of the widest walk, 0 where there is none.
double Search::widest() const {
    std::vector<double> width(parts_.devices.size(), 0);
    std::priority_queue<std::pair<double, DeviceId>> open;
    width[from_] = unreached;
    open.emplace(unreached, from_);
    while (!open.empty()) {
        const auto [reached, at] = open.top();
        open.pop();
        if (at == to_) return reached;
        if (reached < width[at]) continue;
        each_next(at, [&, through = reached](std::uint32_t position, DeviceId next) {
            const double now = std::min(through, parts_.links[position].gb_per_s);
            if (now <= width[next]) return;
            width[next] = now;
            open.emplace(now, next);
        });
    }
    return 0;
}

// The quickest walk over links of at least that rate; there is one.
Path Search::quickest(double at_least) const {
    using Cost = std::pair<double, int>;  // latency, links
    std::vector<Cost> cost(parts_.devices.size(), Cost{unreached, 0});
    std::vector<std::uint32_t> came_by(parts_.devices.size(), no_link);
    std::priority_queue<std::pair<Cost, DeviceId>, std::vector<std::pair<Cost, DeviceId>>, std::greater<>>
        open;
    cost[from_] = {0, 0};
    open.emplace(cost[from_], from_);
    while (!open.empty()) {
        const auto [so_far, at] = open.top();
        open.pop();
        if (at == to_) break;
        if (so_far > cost[at]) continue;
        each_next(at, [&, spent = so_far](std::uint32_t position, DeviceId next) {
            const Link& link = parts_.links[position];
            if (link.gb_per_s < at_least) return;
            const Cost now{spent.first + link.latency_us, spent.second + 1};
            if (now >= cost[next]) return;
            cost[next] = now;
            came_by[next] = position;
            open.emplace(now, next);
        });
    }
    Path path = walk_back(came_by, cost[to_].first);
    path.gb_per_s = at_least;
    return path;
}

Path Search::walk_back(const std::vector<std::uint32_t>& came_by, double latency) const {
    Path path;
    path.latency_us = latency;
    path.all_nvlink = true;
    path.nvlinks = std::numeric_limits<int>::max();
    for (DeviceId at = to_; at != from_;) {
        const std::uint32_t position = came_by[at];
        const Link& link = parts_.links[position];
        path.links.push_back(position);
        path.all_nvlink = path.all_nvlink && link.kind == LinkKind::nvlink;
        path.nvlinks = std::min(path.nvlinks, link.width);
        at = link.a == at ? link.b : link.a;
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

std::optional<Path> Topology::path(DeviceId a, DeviceId b, Fabric fabric) const {
    if (a >= parts_.devices.size() || b >= parts_.devices.size()) return std::nullopt;
    if (a == b) return Path{};

    const bool two_gpus = device(a).kind == DeviceKind::gpu && device(b).kind == DeviceKind::gpu;
    std::optional<Path> bundle;
    if (two_gpus && fabric != Fabric::pcie) {
        bundle = nvlink_bundle(Search(parts_, links_of_, a, b, Fabric::nvlink));
        if (fabric == Fabric::nvlink) return bundle;
    }
    auto walk = Search(parts_, links_of_, a, b, fabric).best();
    if (bundle && walk && bundle->gb_per_s >= walk->gb_per_s) return bundle;
    return walk;
}

}  // namespace sidestep
