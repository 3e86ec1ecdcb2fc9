#include "transfer/batch_plan.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "transfer/ends.hpp"

namespace sidestep::transfer {
namespace {

// A copy this large gains nothing from a batch, and deserves its own lanes.
constexpr Bytes largest_in_group = Bytes{32} << 20;

// Between GPUs and up to this mean size, one kernel for all is quicker than the copy engines, which take
// about 2 us for each copy however small: 256 KiB take 0.7 us at NVLink's 396 GB/s (nvbandwidth 0.8, H200).
constexpr Bytes kernel_mean = Bytes{256} << 10;

constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

std::uintptr_t address_of(const Buffer& buffer) {
    return reinterpret_cast<std::uintptr_t>(buffer.address());
}

bool is_memory(const Buffer& buffer) {
    const Place& place = buffer.place();
    return (place.is_host() || place.is_gpu()) && buffer.address() != nullptr &&
           buffer.size() != Buffer::whole;
}

// Whether the copy can be part of a group, as far as the buffers alone tell. Whatever is wrong with it is
// found, and put into words, when it is begun as a copy of its own.
bool fits_group(const BatchCopy& copy, const CopyOptions& options, bool on_stream) {
    const Buffer& from = *copy.from;
    const Buffer& to = *copy.to;
    if (options.verify || !is_memory(from) || !is_memory(to) || to.read_only()) return false;
    if (from.size() != to.size() || from.size() == 0) return false;
    if (from.size() > largest_in_group && !on_stream) return false;
    // An address of a node is not one of this machine.
    if (!from.place().node().empty() || !to.place().node().empty()) return true;
    return !overlap(from, to, from.size());
}

// From the lowest of some ends to behind the highest.
struct Extent {
    std::uintptr_t start = std::numeric_limits<std::uintptr_t>::max();
    std::uintptr_t behind = 0;

    void add(const Buffer& buffer) {
        start = std::min(start, address_of(buffer));
        behind = std::max(behind, address_of(buffer) + buffer.size());
    }
};

// Copies between the same two places.
struct Bucket {
    Place from;
    Place to;
    std::vector<std::uint32_t> positions;
    Extent sources;
    Extent targets;

    void add(std::uint32_t position, const BatchCopy& copy) {
        positions.push_back(position);
        sources.add(*copy.from);
        targets.add(*copy.to);
    }
};

Bucket& bucket_of(std::vector<Bucket>& buckets, const BatchCopy& copy) {
    const auto fits = [&copy](const Bucket& bucket) {
        return bucket.from == copy.from->place() && bucket.to == copy.to->place();
    };
    // Neighbours often go the same way.
    if (!buckets.empty() && fits(buckets.back())) return buckets.back();
    const auto found = std::ranges::find_if(buckets, fits);
    if (found != buckets.end())
        std::swap(*found, buckets.back());
    else
        buckets.push_back({copy.from->place(), copy.to->place(), {}, {}, {}});
    return buckets.back();
}

// One end of every copy of a bucket, resolved.
struct Side {
    std::shared_ptr<std::vector<BatchRange>> ranges = std::make_shared<std::vector<BatchRange>>();
    // By the copy's place in the bucket; none: not described. Empty: there is one range.
    std::vector<std::uint32_t> range_of;

    std::uint32_t range(std::size_t i) const { return range_of.empty() ? 0 : range_of[i]; }
};

// Ranges of one side, tried from the lowest address on: as many ends at a time as were described together the
// last time, fewer where that fails, and more again after a row of successes.
struct RangeFinder {
    const backend::Registry& registry;
    const std::vector<BatchCopy>& copies;
    const std::vector<std::uint32_t>& positions;  // of them
    const Buffer* BatchCopy::*end_of;             // from or to
    const Place& place;
    bool kind_matters;
    std::vector<std::uint32_t> order{};  // by address; empty: as they come
    Side side{};

    // `all`: of all of them.
    Side find(const Extent& all) {
        // Nearly always they are parts of one allocation, and their order does not matter.
        if (take(all, 0, positions.size())) return std::move(side);
        order.resize(positions.size());
        std::iota(order.begin(), order.end(), 0u);
        side.range_of.assign(positions.size(), none);
        const auto address = [this](std::size_t i) { return end(i).address(); };
        if (!std::ranges::is_sorted(order, {}, address)) std::ranges::sort(order, {}, address);
        // Powers of two: pieces of one size fill an allocation by such a number more often than by another.
        std::size_t guess = std::max<std::size_t>(std::bit_ceil(order.size()) / 2, 1);
        int row = 0;
        for (std::size_t at = 0; at < order.size();) {
            std::size_t count = std::min(guess, order.size() - at);
            while (!take(extent(at, count), at, count) && count > 1) {
                count = guess = std::bit_ceil(count) / 2;
                row = 0;
            }
            at += count;
            if (++row % 8 == 0) guess *= 2;
        }
        return std::move(side);
    }

    const Buffer& end(std::size_t i) const { return *(copies[positions[i]].*end_of); }

    Extent extent(std::size_t at, std::size_t count) const {
        Extent all;
        for (std::size_t i = at; i < at + count; ++i) all.add(end(order[i]));
        return all;
    }

    // Whether `count` ends from `at` on lie in one piece of memory of one kind.
    bool take(const Extent& all, std::size_t at, std::size_t count) {
        const auto memory = Buffer::memory(place, reinterpret_cast<void*>(all.start), all.behind - all.start);
        const auto found = describe(registry, memory);
        if (!found) return false;
        MemoryKind kind = found->memory;
        // Memory that is pinned in part counts as pageable, though each end may be pinned; and where managed
        // memory ends is not told.
        const bool vague = (kind == MemoryKind::pageable && kind_matters) || kind == MemoryKind::managed;
        if (vague && count > 1) return false;
        if (!kind_matters) kind = MemoryKind::pageable;  // as for a single copy: not asked
        const auto range = static_cast<std::uint32_t>(side.ranges->size());
        if (!order.empty())
            for (std::size_t i = at; i < at + count; ++i) side.range_of[order[i]] = range;
        side.ranges->push_back({memory, kind});
        return true;
    }
};

Prefer preference(const BatchGroup& group, Prefer asked) {
    const Place& from = group.ends.from.place();
    const Place& to = group.ends.to.place();
    const bool gpus = from.is_gpu() && to.is_gpu() && from.node().empty() && to.node().empty();
    const bool small = group.ends.bytes / group.pieces.size() < kernel_mean;
    return asked == Prefer::automatic && gpus && small ? Prefer::kernel : asked;
}

// Whether the group's best single lane is one hop that takes batches, or two of them; keeps its plan then.
bool plan_group(Machine& machine, const CopyOptions& options, bool on_stream, BatchGroup& group) {
    CopyOptions wishes = options;
    wishes.prefer = preference(group, options.prefer);
    wishes.lanes = 1;
    auto plan = machine.plans.get(group.ends, wishes);
    if (!plan || (*plan)->lanes.size() != 1) return false;
    const auto& hops = (*plan)->lanes[0];
    const bool relayed = hops.size() == 2;
    if (hops.size() > 2 || (relayed && (on_stream || options.max_staging < largest_relayed))) return false;
    for (const ReadyHop& hop : hops)
        if (hop.backend->batcher() == nullptr || (on_stream && !hop.streams)) return false;
    group.plan = std::move(*plan);
    return true;
}

void plan_bucket(Machine& machine, const CopyOptions& options, bool on_stream,
                 const std::vector<BatchCopy>& copies, const Bucket& bucket, BatchPlan& plan) {
    if (!check_place(machine.topology, bucket.from) || !check_place(machine.topology, bucket.to)) {
        plan.singles.insert(plan.singles.end(), bucket.positions.begin(), bucket.positions.end());
        return;
    }
    const bool kind_matters = bucket.from.is_gpu() || bucket.to.is_gpu();
    const auto side = [&](const Buffer* BatchCopy::*end, const Place& place, const Extent& all) {
        return RangeFinder{machine.registry, copies, bucket.positions, end, place, kind_matters}.find(all);
    };
    const Side from = side(&BatchCopy::from, bucket.from, bucket.sources);
    const Side to = side(&BatchCopy::to, bucket.to, bucket.targets);
    std::vector<BatchGroup> groups;
    for (std::size_t i = 0; i < bucket.positions.size(); ++i) {
        const std::uint32_t position = bucket.positions[i];
        if (from.range(i) == none || to.range(i) == none) {
            plan.singles.push_back(position);
            continue;
        }
        const BatchRange& source = (*from.ranges)[from.range(i)];
        const BatchRange& target = (*to.ranges)[to.range(i)];
        auto group = std::ranges::find_if(groups, [&](const BatchGroup& known) {
            return known.ends.from_memory == source.kind && known.ends.to_memory == target.kind;
        });
        if (group == groups.end()) {
            const Ends ends{source.memory, target.memory, source.kind, target.kind};
            group = groups.insert(groups.end(), {ends, {}, from.ranges, to.ranges, nullptr});
            group->pieces.reserve(bucket.positions.size() - i);
        }
        const Buffer& source_end = *copies[position].from;
        const Buffer& target_end = *copies[position].to;
        group->pieces.push_back({position, from.range(i), to.range(i),
                                 address_of(source_end) - address_of(source.memory),
                                 address_of(target_end) - address_of(target.memory), source_end.size()});
        group->ends.bytes += source_end.size();
    }
    for (BatchGroup& group : groups) {
        const bool together = plan_group(machine, options, on_stream, group);
        const bool relayed = together && group.relayed();
        // Large ones are worth lanes of their own where bytes wait in between.
        std::erase_if(group.pieces, [&](const BatchPiece& piece) {
            if (together && (!relayed || piece.size <= largest_relayed)) return false;
            plan.singles.push_back(piece.position);
            return true;
        });
        if (!group.pieces.empty()) plan.groups.push_back(std::move(group));
    }
}

}  // namespace

BatchPlan plan_batch(Machine& machine, const CopyOptions& options, bool on_stream,
                     const std::vector<BatchCopy>& copies) {
    BatchPlan plan;
    std::vector<Bucket> buckets;
    for (std::uint32_t i = 0; i < copies.size(); ++i) {
        if (copies[i].from->size() != Buffer::whole) plan.bytes += copies[i].from->size();
        if (fits_group(copies[i], options, on_stream))
            bucket_of(buckets, copies[i]).add(i, copies[i]);
        else
            plan.singles.push_back(i);
    }
    for (const Bucket& bucket : buckets) plan_bucket(machine, options, on_stream, copies, bucket, plan);
    std::ranges::sort(plan.singles);
    return plan;
}

}  // namespace sidestep::transfer
