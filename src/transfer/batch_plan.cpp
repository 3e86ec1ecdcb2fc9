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

// Copies between the same two places.
struct Bucket {
    Place from;
    Place to;
    std::vector<std::uint32_t> positions;
};

Bucket& bucket_of(std::vector<Bucket>& buckets, const BatchCopy& copy) {
    const auto fits = [&copy](const Bucket& bucket) {
        return bucket.from == copy.from->place() && bucket.to == copy.to->place();
    };
    // Neighbours often go the same way.
    if (!buckets.empty() && fits(buckets.back())) return buckets.back();
    const auto found = std::ranges::find_if(buckets, fits);
    if (found != buckets.end()) {
        std::swap(*found, buckets.back());
        return buckets.back();
    }
    buckets.push_back({copy.from->place(), copy.to->place(), {}});
    return buckets.back();
}

// One end of every copy of a bucket, resolved.
struct Side {
    std::shared_ptr<std::vector<BatchRange>> ranges = std::make_shared<std::vector<BatchRange>>();
    std::vector<std::uint32_t> range_of;  // by the copy's place in the bucket; none: not described

    std::uint32_t range(std::size_t i) const {
        return range_of.empty() ? 0 : range_of[i];
    }  // empty: there is one
};

// Ranges of one side, tried from the lowest address on: as many ends at a time as were described together the
// last time, fewer where that fails, and more again after a row of successes.
class RangeFinder {
public:
    // `end`: &BatchCopy::from or &BatchCopy::to, of the copies at `positions`.
    RangeFinder(const backend::Registry& registry, const Place& place, bool other_is_gpu,
                const std::vector<BatchCopy>& copies, const std::vector<std::uint32_t>& positions,
                const Buffer* BatchCopy::*end)
        : registry_(registry),
          place_(place),
          kind_matters_(place.is_gpu() || other_is_gpu),
          copies_(copies),
          positions_(positions),
          end_(end) {}

    Side find() {
        // Nearly always they are parts of one allocation, and their order does not matter.
        if (take(0, positions_.size())) return std::move(side_);
        order_.resize(positions_.size());
        std::iota(order_.begin(), order_.end(), 0u);
        side_.range_of.assign(positions_.size(), none);
        const auto lower = [this](std::size_t a, std::size_t b) {
            return end(a).address() < end(b).address();
        };
        if (!std::ranges::is_sorted(order_, lower)) std::ranges::sort(order_, lower);
        // Powers of two: pieces of one size fill an allocation by such a number more often than by another.
        std::size_t guess = std::max<std::size_t>(std::bit_ceil(order_.size()) / 2, 1);
        int row = 0;
        for (std::size_t at = 0; at < order_.size();) {
            std::size_t count = std::min(guess, order_.size() - at);
            while (!take(at, count) && count > 1) {
                count = guess = std::bit_ceil(count) / 2;
                row = 0;
            }
            at += count;
            if (++row < 8) continue;
            guess *= 2;
            row = 0;
        }
        return std::move(side_);
    }

private:
    const Buffer& end(std::size_t i) const { return *(copies_[positions_[i]].*end_); }

    // Whether `count` ends from `at` on lie in one piece of memory of one kind.
    bool take(std::size_t at, std::size_t count) {
        std::uintptr_t start = std::numeric_limits<std::uintptr_t>::max();
        std::uintptr_t behind = 0;
        for (std::size_t i = at; i < at + count; ++i) {
            const Buffer& buffer = end(order_.empty() ? i : order_[i]);
            start = std::min(start, address_of(buffer));
            behind = std::max(behind, address_of(buffer) + buffer.size());
        }
        const Buffer memory = Buffer::memory(place_, reinterpret_cast<void*>(start), behind - start);
        const auto found = describe(registry_, memory);
        if (!found) return false;
        MemoryKind kind = found->memory;
        // Memory that is pinned in part counts as pageable, though each end may be pinned; and where managed
        // memory ends is not told.
        const bool vague = (kind == MemoryKind::pageable && kind_matters_) || kind == MemoryKind::managed;
        if (vague && count > 1) return false;
        if (!kind_matters_) kind = MemoryKind::pageable;  // as for a single copy: not asked
        const auto range = static_cast<std::uint32_t>(side_.ranges->size());
        if (!order_.empty())
            for (std::size_t i = at; i < at + count; ++i) side_.range_of[order_[i]] = range;
        side_.ranges->push_back({memory, kind});
        return true;
    }

    const backend::Registry& registry_;
    const Place place_;
    const bool kind_matters_;
    const std::vector<BatchCopy>& copies_;
    const std::vector<std::uint32_t>& positions_;
    const Buffer* BatchCopy::*const end_;
    std::vector<std::uint32_t> order_;  // by address; empty: as they come
    Side side_;
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
    const Side from = RangeFinder(machine.registry, bucket.from, bucket.to.is_gpu(), copies, bucket.positions,
                                  &BatchCopy::from)
                          .find();
    const Side to = RangeFinder(machine.registry, bucket.to, bucket.from.is_gpu(), copies, bucket.positions,
                                &BatchCopy::to)
                        .find();
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
        if (fits_group(copies[i], options, on_stream))
            bucket_of(buckets, copies[i]).positions.push_back(i);
        else
            plan.singles.push_back(i);
    }
    for (const Bucket& bucket : buckets) plan_bucket(machine, options, on_stream, copies, bucket, plan);
    std::ranges::sort(plan.singles);
    return plan;
}

}  // namespace sidestep::transfer
