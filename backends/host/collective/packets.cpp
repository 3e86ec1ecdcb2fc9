// Shape::packets, coalesced, packets_two_phase, lamport and lines: everything is pushed first, then
// what comes is taken out.
#include <algorithm>
#include <bit>

#include "backends/host/collective/rank_state.hpp"

namespace sidestep::backends::host {
namespace {

using protocol::Combine;
using protocol::FaultKind;
using protocol::Shape;

// Every so many packet tasks stale packets are wiped, long before their flags wrap around.
constexpr std::uint64_t wiped_every = std::uint64_t{1} << 30;

// What goes to a rank and comes from it in one call, and the packet of the lane that it begins at.
struct Exchanged {
    const char* from;
    std::uint64_t sent;
    char* to;
    std::uint64_t taken;
    std::uint64_t unit;
};

// One packet task: who the others are, and which flag and parity it has.
class PacketTask : RankTask {
public:
    explicit PacketTask(RankState& state) : RankTask(state) {}

    bool one_phase() {
        const unsigned calls = task_.shape == Shape::coalesced ? task_.calls : 1;
        for (unsigned i = 0; i < state_.others(); ++i) {
            push_header(state_.other(i));
            for (unsigned call = 0; call < calls; ++call) {
                const Exchanged block = exchanged(call, state_.other(i));
                push(0, state_.other(i), block.from, block.sent, block.unit);
            }
        }
        // What the lamport task before was sent, which it has read.
        const std::uint32_t lamport = state_.counters.lamport;
        for (unsigned rank = 0; rank < state_.ranks && task_.shape == Shape::lamport; ++rank)
            LamportFormat::empty(
                state_.arena + state_.layout.lamport(protocol::lamport_stale_set(lamport), rank),
                protocol::lamport_left(lamport));
        if (!await_headers()) return false;
        for (unsigned call = 0; call < calls; ++call) {
            const Exchanged own = exchanged(call, state_.me);
            if (task_.combine != Combine::none) {
                if (!combine_all(own.from, own.to, own.taken, own.unit)) return false;
                continue;
            }
            // In place nothing has to be copied, which may be said so.
            if (!state_.copy(own.to, own.from, std::min(own.sent, own.taken))) return false;
            for (unsigned i = 0; i < state_.others(); ++i) {
                const Exchanged block = exchanged(call, state_.other(i));
                if (!take(0, state_.other(i), block.to, block.taken, block.unit)) return false;
            }
        }
        return true;
    }

    bool two_phase() {
        for (unsigned i = 0; i < state_.others(); ++i) {
            const unsigned rank = state_.other(i);
            push_header(rank);
            const std::uint64_t bytes = bytes_of(rank, task_.slices[rank].sources, state_.me);
            push(0, rank, source_of(rank, bytes), bytes);
        }
        if (!await_headers() || !own_slice()) return false;
        for (unsigned i = 0; i < state_.others(); ++i) {
            const unsigned rank = state_.other(i);
            const std::uint64_t bytes = bytes_of(rank, task_.slices[rank].targets, state_.me);
            if (!take(1, rank, part(task_.recv, task_.slices[rank].target_offset * size_, bytes), bytes))
                return false;
        }
        return copy_local();
    }

    // Nobody writes to this parity before it has this rank's packets of the next task, nor to phase 1 (of
    // packets; flags of lines do not wrap around).
    void end() {
        if (state_.counters.epoch % wiped_every < 2) {
            for (unsigned phase = 0; phase < 2; ++phase) {
                char* const lanes = state_.arena + state_.layout.header(phase, parity_, 0);
                const std::uint64_t bytes = state_.ranks * state_.layout.packet_lane();
                for (std::uint64_t at = 0; at < bytes; at += 8) store_word(lanes + at, 0, Order::relaxed);
            }
        }
        ++state_.counters.epoch;
        if (task_.shape != Shape::lamport) return;
        const std::uint64_t units =
            (task_.from[state_.me].bytes + protocol::lamport_unit - 1) / protocol::lamport_unit;
        state_.counters.lamport = protocol::lamport_after(state_.counters.lamport, units);
    }

private:
    // Calls work(format, lane) for what a rank gets from another one.
    template <typename Work>
    auto in_lane(unsigned phase, unsigned of_rank, unsigned from_rank, Work work) const {
        char* const arena = state_.arena_of(of_rank);
        if (task_.shape == Shape::lines)
            return work(LineFormat{protocol::line_flag(state_.counters.epoch)},
                        arena + state_.layout.lines(phase, parity_, from_rank));
        if (task_.shape == Shape::lamport)
            return work(
                LamportFormat{},
                arena + state_.layout.lamport(protocol::lamport_set(state_.counters.lamport), from_rank));
        return work(PacketFormat{flag_}, arena + state_.layout.packets(phase, parity_, from_rank));
    }

    void push_header(unsigned rank) const {
        char* const header = state_.arena_of(rank) + state_.layout.header(0, parity_, state_.me);
        if (task_.combine == Combine::scaled_sum) {
            store_packet(header + packet_bytes, reduction_.scales[state_.me], flag_);
        }
        store_packet(header, task_.signature, flag_);
    }

    void push(unsigned phase, unsigned rank, const char* from, std::uint64_t bytes,
              std::uint64_t unit = 0) const {
        in_lane(phase, rank, state_.me, [&](const auto& format, char* lane) {
            char* to = lane + unit * format.stride;
            for (std::uint64_t at = 0; at < bytes; at += format.payload, to += format.stride)
                format.store(to, from + at, std::min(format.payload, bytes - at));
        });
    }

    bool await_headers() {
        return wait_for_others(state_, [&](unsigned rank) {
            const char* const header = state_.arena + state_.layout.header(0, parity_, rank);
            std::uint64_t signature = 0;
            if (!load_packet(header, flag_, signature)) return false;
            if (signature != task_.signature) return !state_.give_up_of_mismatch(rank, signature);
            return task_.combine != Combine::scaled_sum ||
                   load_packet(header + packet_bytes, flag_, reduction_.scales[rank]);
        });
    }

    bool take(unsigned phase, unsigned rank, char* to, std::uint64_t bytes, std::uint64_t unit = 0) {
        return in_lane(phase, state_.me, rank, [&](const auto& format, const char* lane) {
            const char* from = lane + unit * format.stride;
            for (std::uint64_t at = 0; at < bytes; at += format.payload, from += format.stride)
                for (Wait wait; !format.load(from, to + at, std::min(format.payload, bytes - at));) {
                    const FaultKind why = wait.pause(state_.stop);
                    if (why != FaultKind::none) return state_.give_up({why, rank});
                }
            return true;
        });
    }

    // What every rank sent in phase 0, and `own` of this one.
    bool combine_all(const char* own, char* out, std::uint64_t bytes, std::uint64_t unit = 0) {
        if (bytes == 0) return true;
        state_.scratch.resize(std::max<std::size_t>(state_.scratch.size(), bytes * state_.ranks));
        const char* sources[protocol::max_ranks];
        unsigned numbers[protocol::max_ranks];
        for (unsigned rank = 0; rank < state_.ranks; ++rank) {
            char* const taken = state_.scratch.data() + rank * bytes;
            if (rank != state_.me && !take(0, rank, taken, bytes, unit)) return false;
            sources[rank] = rank == state_.me ? own : taken;
            numbers[rank] = rank;
        }
        combine(reduction_, {sources, state_.ranks}, {numbers, state_.ranks}, out, bytes / size_);
        return true;
    }

    // A task of one call has blocks of any size, one of several calls the same for all ranks.
    Exchanged exchanged(unsigned call, unsigned rank) const {
        if (task_.shape != Shape::coalesced) {
            const protocol::Block &to = task_.to[rank], &from = task_.from[rank];
            return {part(task_.send, to.offset, to.bytes), to.bytes,
                    part(task_.recv, from.offset, from.bytes), from.bytes, 0};
        }
        const auto [send, recv, bytes, unit] = task_.call(call);
        return {part(task_.send, send + (task_.send_blocks ? rank * bytes : 0), bytes), bytes,
                part(task_.recv, recv + (task_.recv_blocks ? rank * bytes : 0), bytes), bytes, unit};
    }

    // What the sources have of this rank's slice, combined, to the targets.
    bool own_slice() {
        const protocol::Slice& mine = task_.slices[state_.me];
        const std::uint64_t bytes = mine.count * size_;
        if (bytes == 0) return true;
        char* const kept =
            part(task_.recv, mine.target_offset * size_, bytes_of(state_.me, mine.targets, state_.me));
        if (kept == nullptr) result_.resize(bytes);
        char* const result = kept != nullptr ? kept : result_.data();
        const auto source = static_cast<unsigned>(std::countr_zero(mine.sources));
        if (task_.combine != Combine::none) {
            if (!combine_all(source_of(state_.me, bytes), result, bytes)) return false;
        } else if (source == state_.me) {
            if (!state_.copy(result, source_of(source, bytes), bytes)) return false;
        } else if (!take(0, source, result, bytes)) {
            return false;
        }
        for (unsigned i = 0; i < state_.others(); ++i)
            if (bytes_of(state_.me, mine.targets, state_.other(i)) > 0)
                push(1, state_.other(i), result, bytes);
        return true;
    }

    // Of a slice, where the rank is one of the set.
    std::uint64_t bytes_of(unsigned owner, std::uint16_t set, unsigned rank) const {
        return set >> rank & 1 ? task_.slices[owner].count * size_ : 0;
    }

    const char* source_of(unsigned owner, std::uint64_t bytes) const {
        return part(task_.send, task_.slices[owner].source_offset * size_, bytes);
    }

    const unsigned parity_ = static_cast<unsigned>(state_.counters.epoch & 1);
    const std::uint32_t flag_ = protocol::packet_flag(state_.counters.epoch);
    std::vector<char> result_;  // of this rank's slice, where it is wanted by others alone
};

}  // namespace

bool run_packets(RankState& state) {
    PacketTask packets(state);
    const Shape shape = state.task->shape;
    const bool two = shape == Shape::packets_two_phase || shape == Shape::lines;
    const bool well = two ? packets.two_phase() : packets.one_phase();
    if (well) packets.end();
    return well;
}

}  // namespace sidestep::backends::host
