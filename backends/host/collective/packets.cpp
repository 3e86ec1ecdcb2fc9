// Shape::packets, coalesced, packets_two_phase, lamport and lines: everything is pushed first, then
// what comes is taken out.
#include <algorithm>
#include <bit>

#include "backends/host/collective/lamport.hpp"
#include "backends/host/collective/lines.hpp"
#include "backends/host/collective/rank_state.hpp"

namespace sidestep::backends::host {
namespace {

using protocol::CollectiveTask;
using protocol::Combine;
using protocol::FaultKind;
using protocol::Shape;

// Every so many packet tasks stale packets are wiped, long before their flags wrap around.
constexpr std::uint64_t wiped_every = std::uint64_t{1} << 30;

// One packet task: who the others are, and which flag and parity it has.
class PacketTask {
public:
    PacketTask(RankState& state, const CollectiveTask& task)
        : state_(state),
          task_(task),
          parity_(static_cast<unsigned>(state.counters.epoch & 1)),
          flag_(protocol::packet_flag(state.counters.epoch)),
          size_(protocol::size_of(task.element)) {}

    bool one_shot();
    bool two_phase();
    bool coalesced();
    void end();

private:
    void push_header(unsigned rank) const;
    void push(unsigned phase, unsigned rank, const char* from, std::uint64_t bytes,
              std::uint64_t unit = 0) const;
    void push_lines(unsigned phase, unsigned rank, const char* from, std::uint64_t bytes) const;
    void push_lamport(unsigned rank, const char* from, std::uint64_t bytes) const;
    bool await_headers();
    bool take(unsigned phase, unsigned rank, char* to, std::uint64_t bytes, std::uint64_t unit = 0);
    bool take_lines(unsigned phase, unsigned rank, char* to, std::uint64_t bytes);
    bool take_lamport(unsigned rank, char* to, std::uint64_t bytes);
    void empty_lamport() const;
    unsigned lamport_set() const { return protocol::lamport_set(state_.counters.lamport); }
    // Until ready() says so; false: give up.
    template <typename Ready>
    bool await(unsigned rank, Ready ready);
    bool combine_all(const char* own, char* out, std::uint64_t bytes, std::uint64_t unit = 0);
    const char* coalesced_send(const protocol::CoalescedCall& call, unsigned rank) const;
    char* coalesced_recv(const protocol::CoalescedCall& call, unsigned rank) const;
    bool own_slice();
    std::uint64_t bytes_of(unsigned owner, std::uint16_t set, unsigned rank) const;
    const char* source_of(unsigned owner, std::uint64_t bytes) const;

    RankState& state_;
    const CollectiveTask& task_;
    const unsigned parity_;
    const std::uint32_t flag_;
    const unsigned size_;
    Reduction reduction_;
    std::vector<char> result_;  // of this rank's slice, where it is wanted by others alone
};

void PacketTask::push_header(unsigned rank) const {
    char* const header = state_.arena_of(rank) + state_.layout.header(0, parity_, state_.me);
    if (task_.combine == Combine::scaled_sum) {
        store_packet(header + packet_bytes, reduction_.scales[state_.me], flag_);
    }
    store_packet(header, task_.signature, flag_);
}

// From packet number `unit` of the lane on. The last packet is filled up with zeros.
void PacketTask::push(unsigned phase, unsigned rank, const char* from, std::uint64_t bytes,
                      std::uint64_t unit) const {
    if (task_.shape == Shape::lines) return push_lines(phase, rank, from, bytes);
    if (task_.shape == Shape::lamport) return push_lamport(rank, from, bytes);
    char* to = state_.arena_of(rank) + state_.layout.packets(phase, parity_, state_.me) + unit * packet_bytes;
    for (std::uint64_t at = 0; at < bytes; at += 8, to += packet_bytes) {
        std::uint64_t value = 0;
        std::memcpy(&value, from + at, std::min<std::uint64_t>(8, bytes - at));
        store_packet(to, value, flag_, Order::relaxed);
    }
}

void PacketTask::push_lines(unsigned phase, unsigned rank, const char* from, std::uint64_t bytes) const {
    char* const lane = state_.arena_of(rank) + state_.layout.lines(phase, parity_, state_.me);
    for (std::uint64_t at = 0, number = 0; at < bytes; at += protocol::line_payload, ++number)
        store_payload(line_at(lane, number), from + at, std::min(protocol::line_payload, bytes - at),
                      protocol::line_flag(state_.counters.epoch));
}

void PacketTask::push_lamport(unsigned rank, const char* from, std::uint64_t bytes) const {
    char* to = state_.arena_of(rank) + state_.layout.lamport(lamport_set(), state_.me);
    for (std::uint64_t at = 0; at < bytes; at += protocol::lamport_unit, to += protocol::lamport_unit)
        store_unit(to, from + at, std::min<std::uint64_t>(protocol::lamport_unit, bytes - at));
}

bool PacketTask::await_headers() {
    return wait_for_others(state_, task_, [&](unsigned rank) {
        const char* const header = state_.arena + state_.layout.header(0, parity_, rank);
        std::uint64_t signature = 0;
        if (!load_packet(header, flag_, signature)) return false;
        if (signature != task_.signature) {
            state_.give_up_of_mismatch(task_, rank, signature);
            return true;
        }
        return task_.combine != Combine::scaled_sum ||
               load_packet(header + packet_bytes, flag_, reduction_.scales[rank]);
    });
}

template <typename Ready>
bool PacketTask::await(unsigned rank, Ready ready) {
    for (Wait wait; !ready();) {
        const FaultKind why = wait.pause(state_.stop);
        if (why != FaultKind::none) return state_.give_up(task_, why, rank);
    }
    return true;
}

bool PacketTask::take(unsigned phase, unsigned rank, char* to, std::uint64_t bytes, std::uint64_t unit) {
    if (task_.shape == Shape::lines) return take_lines(phase, rank, to, bytes);
    if (task_.shape == Shape::lamport) return take_lamport(rank, to, bytes);
    const char* from = state_.arena + state_.layout.packets(phase, parity_, rank) + unit * packet_bytes;
    for (std::uint64_t at = 0; at < bytes; at += 8, from += packet_bytes) {
        std::uint64_t value = 0;
        if (!await(rank, [&] { return load_packet(from, flag_, value, Order::relaxed); })) return false;
        std::memcpy(to + at, &value, std::min<std::uint64_t>(8, bytes - at));
    }
    return true;
}

bool PacketTask::take_lines(unsigned phase, unsigned rank, char* to, std::uint64_t bytes) {
    char* const lane = state_.arena + state_.layout.lines(phase, parity_, rank);
    const std::uint64_t flag = protocol::line_flag(state_.counters.epoch);
    for (std::uint64_t at = 0, number = 0; at < bytes; at += protocol::line_payload, ++number) {
        const std::uint64_t length = std::min(protocol::line_payload, bytes - at);
        if (!await(rank, [&] { return load_payload(line_at(lane, number), to + at, length, flag); }))
            return false;
    }
    return true;
}

bool PacketTask::take_lamport(unsigned rank, char* to, std::uint64_t bytes) {
    char* from = state_.arena + state_.layout.lamport(lamport_set(), rank);
    for (std::uint64_t at = 0; at < bytes; at += protocol::lamport_unit, from += protocol::lamport_unit) {
        const std::uint64_t length = std::min<std::uint64_t>(protocol::lamport_unit, bytes - at);
        if (!await(rank, [&] { return load_unit(from, to + at, length); })) return false;
    }
    return true;
}

// What the lamport task before was sent, which it has read.
void PacketTask::empty_lamport() const {
    const std::uint32_t lamport = state_.counters.lamport;
    for (unsigned rank = 0; rank < state_.ranks; ++rank)
        empty_units(state_.arena + state_.layout.lamport(protocol::lamport_stale_set(lamport), rank),
                    protocol::lamport_left(lamport));
}

// What every rank sent in phase 0, and `own` of this one.
bool PacketTask::combine_all(const char* own, char* out, std::uint64_t bytes, std::uint64_t unit) {
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

bool PacketTask::one_shot() {
    reduction_ = {task_.element, task_.combine, state_.ranks, {}};
    const protocol::Block& mine = task_.to[state_.me];
    const char* const own = part(task_.send, mine.offset, mine.bytes);
    if (task_.combine == Combine::scaled_sum) reduction_.scales[state_.me] = scale_of(task_);
    for (unsigned i = 0; i < state_.others(); ++i) {
        const unsigned rank = state_.other(i);
        push_header(rank);
        const protocol::Block& to = task_.to[rank];
        push(0, rank, part(task_.send, to.offset, to.bytes), to.bytes);
    }
    if (task_.shape == Shape::lamport) empty_lamport();
    if (!await_headers()) return false;
    if (task_.combine != Combine::none) {
        const protocol::Block& to = task_.from[state_.me];
        return combine_all(own, part(task_.recv, to.offset, to.bytes), to.bytes);
    }
    const protocol::Block& kept = task_.from[state_.me];
    const std::uint64_t copied = std::min(mine.bytes, kept.bytes);
    if (!copy_bytes(state_, task_, part(task_.recv, kept.offset, copied), own, copied)) return false;
    for (unsigned i = 0; i < state_.others(); ++i) {
        const unsigned rank = state_.other(i);
        const protocol::Block& from = task_.from[rank];
        if (!take(0, rank, part(task_.recv, from.offset, from.bytes), from.bytes)) return false;
    }
    return true;
}

const char* PacketTask::coalesced_send(const protocol::CoalescedCall& call, unsigned rank) const {
    return part(task_.send, call.send + (task_.send_blocks ? rank * call.bytes : 0), call.bytes);
}
char* PacketTask::coalesced_recv(const protocol::CoalescedCall& call, unsigned rank) const {
    return part(task_.recv, call.recv + (task_.recv_blocks ? rank * call.bytes : 0), call.bytes);
}

bool PacketTask::coalesced() {
    reduction_ = {task_.element, task_.combine, state_.ranks, {}};
    if (task_.combine == Combine::scaled_sum) reduction_.scales[state_.me] = scale_of(task_);
    for (unsigned i = 0; i < state_.others(); ++i) {
        const unsigned rank = state_.other(i);
        push_header(rank);
        for (unsigned c = 0; c < task_.calls; ++c) {
            const protocol::CoalescedCall call = task_.call(c);
            push(0, rank, coalesced_send(call, rank), call.bytes, call.unit);
        }
    }
    if (!await_headers()) return false;
    for (unsigned c = 0; c < task_.calls; ++c) {
        const protocol::CoalescedCall call = task_.call(c);
        const char* const own = coalesced_send(call, state_.me);
        char* const to = coalesced_recv(call, state_.me);
        if (task_.combine != Combine::none) {
            if (!combine_all(own, to, call.bytes, call.unit)) return false;
            continue;
        }
        if (own != to && !copy_bytes(state_, task_, to, own, call.bytes)) return false;
        for (unsigned i = 0; i < state_.others(); ++i)
            if (!take(0, state_.other(i), coalesced_recv(call, state_.other(i)), call.bytes, call.unit))
                return false;
    }
    return true;
}

bool PacketTask::two_phase() {
    reduction_ = {task_.element, task_.combine, state_.ranks, {}};
    if (task_.combine == Combine::scaled_sum) reduction_.scales[state_.me] = scale_of(task_);
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
    return copy_bytes(state_, task_, part(task_.recv, task_.local_to, task_.local_bytes),
                      part(task_.send, task_.local_from, task_.local_bytes), task_.local_bytes);
}

// What the sources have of this rank's slice, combined, to the targets.
bool PacketTask::own_slice() {
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
        if (!copy_bytes(state_, task_, result, source_of(source, bytes), bytes)) return false;
    } else if (!take(0, source, result, bytes)) {
        return false;
    }
    for (unsigned i = 0; i < state_.others(); ++i)
        if (bytes_of(state_.me, mine.targets, state_.other(i)) > 0) push(1, state_.other(i), result, bytes);
    return true;
}

// Of a slice, where the rank is one of the set.
std::uint64_t PacketTask::bytes_of(unsigned owner, std::uint16_t set, unsigned rank) const {
    return set >> rank & 1 ? task_.slices[owner].count * size_ : 0;
}

const char* PacketTask::source_of(unsigned owner, std::uint64_t bytes) const {
    return part(task_.send, task_.slices[owner].source_offset * size_, bytes);
}

// Nobody writes to this parity before it has this rank's packets of the next task, nor to phase 1 (of
// packets; flags of lines do not wrap around).
void PacketTask::end() {
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

}  // namespace

bool run_packets(RankState& state, const CollectiveTask& task) {
    PacketTask packets(state, task);
    const bool one_shot = task.shape == Shape::packets || task.shape == Shape::lamport;
    const bool well = task.shape == Shape::coalesced ? packets.coalesced()
                      : one_shot                     ? packets.one_shot()
                                                     : packets.two_phase();
    if (well) packets.end();
    return well;
}

}  // namespace sidestep::backends::host
