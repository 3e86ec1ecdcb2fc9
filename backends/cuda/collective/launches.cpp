// Which threads run a task on a GPU, and what they are told beside it.
#include <algorithm>

#include "backends/cuda/collective/collective_seat.hpp"
#include "protocol/pair_blocks.hpp"

namespace sidestep::backends::cuda {
namespace {

using protocol::Block;
using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Shape;

constexpr std::uint64_t endless = std::uint64_t{1} << 60;

bool has_device_lists(const CollectiveTask& task) {
    return task.device_send_counts != nullptr;
}

// Whether all ranks are sources and targets of every slice.
bool are_everybodys(const CollectiveTask& task, unsigned ranks) {
    const unsigned all = (1u << ranks) - 1;
    return std::all_of(task.slices, task.slices + ranks, [&](const protocol::Slice& slice) {
        return slice.count == 0 || (slice.sources == all && slice.targets == all);
    });
}

// Whether a task of lamport sends the same block to every rank, and combines it itself.
bool sends_all_the_same(const CollectiveTask& task, unsigned ranks) {
    return std::all_of(task.to, task.to + ranks, [&](const Block& block) {
        return block.offset == task.to[0].offset && block.bytes == task.to[0].bytes;
    });
}

}  // namespace

// Of lamport.
std::uint32_t CollectiveSeat::grain_of(const CollectiveTask& task) const {
    const auto send = reinterpret_cast<std::uintptr_t>(task.send),
               recv = reinterpret_cast<std::uintptr_t>(task.recv);
    const Block& target = task.from[rank_];
    std::uint64_t all = target.bytes == 0 ? 0 : (recv + target.offset) | target.bytes;
    for (unsigned r = 0; r < ranks_; ++r)
        if (task.to[r].bytes > 0) all |= (send + task.to[r].offset) | task.to[r].bytes;
    return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
}

// Threads enough for every unit, and one warp for the headers.
void CollectiveSeat::plan_packets(const CollectiveTask& task, Launch& launch) const {
    const bool two_phase = task.shape == Shape::packets_two_phase;
    const unsigned size = protocol::size_of(task.element);
    const auto block = [&](const Block* list, unsigned r) {
        if (!two_phase) return list[r];
        const protocol::Slice& slice = task.slices[r];
        return Block{slice.source_offset * size, slice.count * size};
    };
    const std::uint64_t unit = task.shape == Shape::lamport ? protocol::lamport_unit : 8;
    const auto units = [unit](std::uint64_t bytes) { return (bytes + unit - 1) / unit; };
    const unsigned next = (rank_ + 1) % ranks_;
    Station& station = launch.station;
    station.alike = 1;
    if (task.shape == Shape::lamport) {
        station.grain = grain_of(task);
        launch.plain = station.grain == protocol::lamport_unit && sends_all_the_same(task, ranks_);
    }
    const bool coalesced = task.shape == Shape::coalesced;
    if (coalesced) station.send_units = task.call(task.calls - 1).end();
    std::uint64_t own = 0;
    if (!coalesced) own = std::max(units(block(task.from, rank_).bytes), units(block(task.to, rank_).bytes));
    for (unsigned r = 0; r < ranks_; ++r) {
        if (r == rank_ || coalesced) continue;
        const Block to = block(task.to, r);
        const Block first = block(task.to, next);
        if (to.bytes != first.bytes || to.offset != first.offset) station.alike = 0;
        station.send_units = std::max(station.send_units, units(to.bytes));
        station.receive_units = std::max(station.receive_units, units(block(task.from, r).bytes));
    }
    const std::uint64_t max = std::max({own, station.send_units, station.receive_units});
    const std::uint64_t a_block = (max + launch.blocks - 1) / launch.blocks;
    const std::uint64_t rounded = (a_block + 31) / 32 * 32;
    // Thread r waits for the scale of rank r.
    const unsigned max_threads = task.shape == Shape::lamport ? max_line_threads : max_data_threads;
    launch.threads = static_cast<unsigned>(std::clamp<std::uint64_t>(rounded, 32, max_threads));
    launch.threads += header_threads;
}

// A warp for every row, as far as they go, and one for the headers.
void CollectiveSeat::plan_lines(const CollectiveTask& task, Launch& launch) const {
    const unsigned size = protocol::size_of(task.element);
    Station& station = launch.station;
    launch.plain = are_everybodys(task, ranks_);
    station.whole_rows = endless;
    std::uint64_t own = 0;
    for (unsigned r = 0; r < ranks_; ++r) {
        const protocol::Slice& slice = task.slices[r];
        const std::uint64_t bytes = slice.count * size;
        if (bytes == 0) continue;
        const bool sends = (slice.sources >> rank_ & 1) != 0;
        const bool receives = (slice.targets >> rank_ & 1) != 0;
        const std::uint64_t rows = (bytes + protocol::row_payload - 1) / protocol::row_payload;
        const std::uint64_t from = reinterpret_cast<std::uintptr_t>(task.send) + slice.source_offset * size;
        const std::uint64_t to = reinterpret_cast<std::uintptr_t>(task.recv) + slice.target_offset * size;
        if (((sends ? from : 0) | (receives ? to : 0)) % 8 != 0) station.whole_rows = 0;
        if (bytes % 8 != 0) station.whole_rows = std::min(station.whole_rows, rows - 1);
        if (r == rank_) own = rows;
        if (r != rank_ && sends) station.send_units = std::max(station.send_units, rows);
        if (r != rank_ && receives) station.receive_units = std::max(station.receive_units, rows);
    }
    const std::uint64_t local = (task.local_bytes + protocol::row_payload - 1) / protocol::row_payload;
    const std::uint64_t max = std::max({own, station.send_units, station.receive_units, local});
    const std::uint64_t a_block = (max + launch.blocks - 1) / launch.blocks;
    const unsigned max_threads = line_threads(task.combine != Combine::none && size == 1, ranks_);
    launch.threads = static_cast<unsigned>(std::clamp<std::uint64_t>(a_block * 32, 32, max_threads));
    launch.threads += header_threads;
}

// One row of blocks for each rank that there is a block for, in rounds: rows come to the multiprocessors one after the
// other, so where there is no room for all of them, those that have come find each other, and make room for the next.
// Where all that goes elsewhere is eager there is a thread for each packet, and a warp that looks after headers.
void CollectiveSeat::plan_pairs(const CollectiveTask& task, Launch& launch) const {
    launch.blocks = 0;
    launch.rows = 0;
    std::uint64_t longest = 0;
    const bool lists = has_device_lists(task);
    // Of blocks that are known on the GPU alone: the largest that is eager, too.
    const std::uint64_t eager =
        lists ? std::min(task.eager_max, protocol::ArenaLayout{ranks_}.eager_payload()) : 0;
    launch.plain = !lists;
    for (unsigned round = 0; round < ranks_; ++round) {
        const unsigned peer = protocol::pair_partner(round, rank_, ranks_);
        const std::uint64_t out = lists ? endless : task.to[peer].bytes;
        const std::uint64_t in = lists ? endless : task.from[peer].bytes;
        if (out == 0 && in == 0) continue;
        // An eager block may have more thread blocks than a larger one that is not.
        for (const std::uint64_t bytes : {out, in, eager})
            launch.blocks = std::max(
                launch.blocks, protocol::pair_blocks(bytes, ranks_, task.eager_max, task.pair_blocks_max));
        launch.station.peers[launch.rows++] = static_cast<std::uint8_t>(peer);
        longest = std::max({longest, out, in});
        launch.plain =
            launch.plain && (peer == rank_ || protocol::is_eager(std::max(out, in), ranks_, task.eager_max));
    }
    const std::uint64_t share = launch.blocks == 0 ? 0 : longest / launch.blocks;
    const std::uint64_t units = launch.plain ? std::min(share, protocol::eager_share) / 8 + 1 : share / 64;
    const unsigned min = launch.plain ? 32 : 64;
    const unsigned max = launch.plain ? max_data_threads : max_pair_threads;
    launch.threads = static_cast<unsigned>(std::clamp<std::uint64_t>((units + 31) / 32 * 32, min, max));
    if (launch.plain) launch.threads += header_threads;
}

// A block of threads that has little to do is small, so that several fit beside each other.
void CollectiveSeat::plan_slices(const CollectiveTask& task, Launch& launch) const {
    std::uint64_t max = task.local_bytes;
    for (unsigned r = 0; r < ranks_; ++r)
        max = std::max(max, task.slices[r].count * protocol::size_of(task.element));
    const std::uint64_t units = max / launch.blocks / 16;
    // Of pushed slices two blocks share a multiprocessor and its registers, so that those of two groups find
    // room.
    const unsigned max_threads = task.shape == Shape::pushed_slices ? max_data_threads / 2 : max_data_threads;
    launch.threads =
        static_cast<unsigned>(std::clamp<std::uint64_t>((units + 31) / 32 * 32, 64, max_threads));
}

CollectiveSeat::Launch CollectiveSeat::plan(const CollectiveTask& task) const {
    Launch launch;
    launch.station.control = reinterpret_cast<SeatControl*>(held_->control.address());
    launch.station.host = words_on_gpu_;
    launch.station.rank = rank_;
    launch.station.ranks = ranks_;
    launch.blocks = std::clamp<unsigned>(task.blocks, 1, protocol::max_blocks);
    if (task.shape == Shape::pairs)
        plan_pairs(task, launch);
    else if (task.shape == Shape::lines)
        plan_lines(task, launch);
    else if (task.shape == Shape::slices || task.shape == Shape::pushed_slices)
        plan_slices(task, launch);
    else if (task.shape == Shape::ring)
        launch.rows = task.combine == Combine::none ? 1 : 2;  // up, or around; and down
    else
        plan_packets(task, launch);
    return launch;
}

}  // namespace sidestep::backends::cuda
