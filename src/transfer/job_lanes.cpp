// How a copy is cut over the lanes of its plan.
#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "base/try.hpp"
#include "transfer/job.hpp"

namespace sidestep::transfer {
namespace {

// Chunk sizes. A direct copy between memories is cut only so that it can be cancelled, at every 10 ms or
// so; a file is read in pieces that several requests carry at once; a staged copy overlaps its hops chunk
// by chunk.
constexpr Bytes direct_host_chunk = Bytes{128} << 20;
constexpr Bytes direct_gpu_chunk = Bytes{512} << 20;
constexpr Bytes direct_file_chunk = Bytes{4} << 20;
constexpr Bytes staged_file_chunk = Bytes{2} << 20;
constexpr Bytes min_staged_chunk = Bytes{256} << 10;
constexpr Bytes page = 4096;
// Staging memory for each stop: enough chunks in flight to keep 16 readers and the GPU busy.
constexpr Bytes max_staging_a_stop = Bytes{64} << 20;
// The same in the memory of a neighbour GPU, and chunks in flight on one of several lanes: enough to keep
// both of its hops busy, few enough that a lane which falls behind holds little back at the end.
constexpr Bytes relay_ring = Bytes{32} << 20;
constexpr std::size_t chunks_on_a_lane = 4;

bool touches_gpu(const Ends& ends) {
    return ends.from.place().is_gpu() || ends.to.place().is_gpu();
}

bool touches_node(const Ends& ends) {
    return !ends.from.place().node().empty() || !ends.to.place().node().empty();
}

Bytes chunk_of(const Ends& ends, const CopyOptions& options, bool staged, bool on_stream) {
    if (on_stream) return ends.bytes;
    if (options.chunk != 0) return base::round_up(options.chunk, page);
    if (!staged && (touches_file(ends) || touches_node(ends))) return direct_file_chunk;
    if (!staged) return touches_gpu(ends) ? direct_gpu_chunk : direct_host_chunk;
    const Bytes max = touches_file(ends) ? staged_file_chunk : route::staged_chunk;
    // Eight chunks or more let the hops of a small copy overlap too.
    return std::clamp(base::round_up(ends.bytes / 8, page), min_staged_chunk, max);
}

}  // namespace

// All lanes of the plan; of several, those that get no staging memory are left out.
Result<void> Job::add_lanes() {
    const std::size_t count = plan_->lanes.size();
    receipt_.lane_failures.resize(count);
    lanes_.resize(count);
    std::optional<Error> first;
    bool any = false;
    for (std::size_t lane = 0; lane < count; ++lane) {
        auto added = add_lane(lane);
        any |= added.ok();
        if (added) continue;
        if (count == 1 || added.error().code != ErrorCode::out_of_memory) return added;
        receipt_.lane_failures[lane] = added.error().message;
        receipt_.notes.push_back(fmt::format("lane {} was left out: {}", lane + 1, added.error().message));
        if (!first) first = added.error();
    }
    if (!any) return *first;
    const bool one_piece = count == 1 && plan_->lanes[0].size() == 1 &&
                           phase_of(ends_.from, ends_.to) + ends_.bytes <= lanes_[0]->chunk();
    needs_driving_ = !one_piece || ends_.to.place().is_file() || options_.verify || needs_gate();
    return {};
}

// Chunks, depth and staging memory of a lane.
LaneSetup Job::shape_of(std::size_t lane) const {
    const std::size_t count = plan_->lanes.size();
    const Bytes stops = plan_->lanes[lane].size() - 1;
    LaneSetup setup;
    if (stream_ != nullptr && !needs_gate()) setup.stream = stream_;
    setup.chunk = chunk_of(ends_, options_, stops > 0, setup.stream != nullptr);
    setup.depth = touches_file(ends_) || touches_node(ends_) ? 16 : 2;
    if (count > 1) {
        setup.chunk = options_.chunk != 0 ? base::round_up(options_.chunk, page)
                                          : route::lane_chunk(ends_.bytes, count);
        setup.depth = chunks_on_a_lane;
        setup.max_new = 1;
    }
    if (stops == 0) return setup;
    std::size_t all_stops = 0;
    for (const auto& hops : plan_->lanes) all_stops += hops.size() - 1;
    Bytes bound = std::min(options_.max_staging / all_stops, max_staging_a_stop);
    for (const ReadyHop& hop : plan_->lanes[lane])
        if (hop.to_memory == MemoryKind::device && &hop != &plan_->lanes[lane].back())
            bound = std::min({bound, relay_ring, machine_.pool.relay_limit(hop.to.index())});
    // A power of two, since that is what the pool hands out.
    const Bytes ring = std::bit_floor(std::max(bound, page));
    setup.chunk = std::min(setup.chunk, count > 1 ? std::max(ring / 2, page) : ring);
    setup.staging = std::min(ring, base::round_up(ends_.bytes, setup.chunk));
    if (count > 1) setup.staging = std::min(setup.staging, chunks_on_a_lane * setup.chunk);
    return setup;
}

Result<void> Job::add_lane(std::size_t lane) {
    const auto& hops = plan_->lanes[lane];
    LaneSetup setup = shape_of(lane);
    setup.owner = this;
    setup.hops = &hops;
    setup.phase = phase_of(ends_.from, ends_.to);
    setup.yields_to = yields_to(lane);
    SIDESTEP_TRY(setup.from, attach(hops.front().backend, backend::Access::read));
    SIDESTEP_TRY(setup.to, attach(hops.back().backend, backend::Access::write));
    if (hops.size() == 1 && plan_->lanes.size() == 1 && !plan_->route.emulated &&
        plan_->route.expected_gb_per_s > 0) {
        const double bytes = static_cast<double>(std::min(ends_.bytes, setup.chunk));
        expected_ = std::chrono::nanoseconds(static_cast<long>(bytes / plan_->route.expected_gb_per_s));
    }
    SIDESTEP_TRY(lanes_[lane], LaneRunner::create(std::move(setup), machine_.pool));
    return {};
}

// Where one end is host memory and the other a GPU, its own link is in use from now on.
void Job::count_traffic() {
    const Place& from = ends_.from.place();
    const Place& to = ends_.to.place();
    if (touches_node(ends_)) return;  // the network is the narrower one
    if (to.is_gpu() && !from.is_gpu()) host_link_ = machine_.traffic.use(to.index(), Direction::to_gpu);
    if (from.is_gpu() && !to.is_gpu()) host_link_ = machine_.traffic.use(from.index(), Direction::from_gpu);
}

const std::atomic<int>* Job::yields_to(std::size_t lane) const {
    const auto& hops = plan_->lanes[lane];
    if (plan_->lanes.size() == 1 || hops.size() == 1 || !hops[0].to.is_gpu()) return nullptr;
    if (ends_.from.place().is_gpu() && ends_.to.place().is_gpu()) return nullptr;
    const Direction direction = ends_.to.place().is_gpu() ? Direction::to_gpu : Direction::from_gpu;
    return &machine_.traffic.counter(hops[0].to.index(), direction);
}

// Verification has its own lanes and staging memory, made ready before the first byte moves.
Result<void> Job::add_verifier() {
    backend::Registration* written = nullptr;
    if (ends_.to.place().is_file())
        for (const Attached& attached : attached_)
            if (attached.access == backend::Access::write) written = attached.registration.get();
    const double before = seconds_since_start();
    SIDESTEP_TRY(verifier_, Verifier::create(*this, machine_.plans, machine_.pool, ends_, written));
    receipt_.verify_seconds = seconds_since_start() - before;
    return {};
}

}  // namespace sidestep::transfer
