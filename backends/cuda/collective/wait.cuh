// Waiting for other ranks, with an end to it.
//
// Whoever polls asks go_on() after every poll. Now and then that looks whether another thread of this GPU has
// given up, more seldom whether the host says so or the deadline has passed. The first thread to give up
// writes the record; all leave, and later tasks return at once.
#pragma once

#include "backends/cuda/collective/memory.cuh"

namespace sidestep::backends::cuda {

using protocol::FaultKind;

struct Difference {
    uint32_t peer_signature;
    uint64_t bytes;
    uint64_t peer_bytes;
};

constexpr unsigned polls_between_looks = 1024;  // about 0.5 ms
constexpr unsigned polls_between_host_looks = 16384;

// The kernels' parameters, what they need of them everywhere, and whether this thread was the first to give
// up.
class KernelContext {
public:
    const CollectiveTask& task;
    const Station& station;
    const ArenaLayout layout;
    const unsigned rank;
    const unsigned ranks;

    __device__ KernelContext(const CollectiveTask& what, const Station& where)
        : task(what), station(where), layout{where.ranks}, rank(where.rank), ranks(where.ranks) {}

    // Where others' memory lies is looked up in each task: it may have changed since the last one.
    __device__ char* arena(unsigned of) const {
        return reinterpret_cast<char*>(load_word(&station.control->reaches[0][of].base));
    }
    // So many bytes from `offset` on in a slot of rank `of`, all of which that rank has said; null where not all of
    // them are mapped here.
    __device__ char* find(unsigned of, unsigned slot, uint64_t offset, uint64_t bytes) const {
        if (slot >= protocol::max_slots) return nullptr;
        const Reach& reach = station.control->reaches[slot][of];
        const uint64_t base = load_word(&reach.base);
        const uint64_t mapped = load_word(&reach.bytes);
        const bool within = bytes <= mapped && offset <= mapped - bytes;
        return within && base ? reinterpret_cast<char*>(base) + offset : nullptr;
    }
    __device__ uint32_t failed() const {
        return *static_cast<const volatile uint32_t*>(&station.control->failed);
    }

    // What SeatControl::failed says: go on, or leave.
    __device__ bool well(uint32_t failed, unsigned peer) {
        if (failed == failed_by_host) give_up(FaultKind::aborted, peer);
        return failed == 0;
    }

    __device__ void give_up(FaultKind kind, unsigned peer, const Difference& difference = {}) {
        if (atomicExch(&station.control->failed, failed_by_task) == failed_by_task) return;
        fault_ = static_cast<unsigned>(kind) << 8 | peer;
        difference_of_block() = difference;
    }

    // By one thread of a block. Tasks of a rank run one after the other, which is the host's to see to; a number that
    // two of them made of each other's data must not pass for a result. Answers what expect_alone() wants to know: later,
    // since the answer takes half a microsecond.
    __device__ uint64_t come_to_work() const {
        return atomicAdd(reinterpret_cast<unsigned long long*>(&station.control->at_work),
                         static_cast<unsigned long long>(station.marked));
    }
    __device__ void expect_alone(uint64_t at_work) {
        if (!alone_at_work(at_work, station.marked)) give_up(FaultKind::overlapped, rank);
    }
    // By one thread, when nothing of the block's counters and lanes is looked at any more. A store is quicker, where one
    // block alone has come.
    __device__ void leave_work() const {
        atomicAdd(reinterpret_cast<unsigned long long*>(&station.control->at_work),
                  0 - static_cast<unsigned long long>(station.marked));
    }
    __device__ void leave_work_as_the_only_block() const {
        *static_cast<volatile uint64_t*>(&station.control->at_work) = 0;
    }

    // By all threads, when they leave: the one that gave up first writes the record.
    __device__ void report() {
        if (fault_ == 0) return;
        volatile protocol::FaultRecord* record = &station.host->fault;
        // The host's abort may have come after another fault.
        if (record->kind != FaultKind::none) return;
        const Difference& difference = difference_of_block();
        record->peer = fault_ & 0xff;
        record->number = task.number;
        record->signature = task.signature;
        record->peer_signature = difference.peer_signature;
        record->bytes = difference.bytes;
        record->peer_bytes = difference.peer_bytes;
        __threadfence_system();
        record->kind = static_cast<FaultKind>(fault_ >> 8);  // the host reads this first
    }

private:
    static __device__ Difference& difference_of_block() {
        __shared__ Difference difference;
        return difference;
    }
    unsigned fault_ = 0;
};

class Wait {
public:
    // False: leave.
    __device__ bool go_on(KernelContext& ground, unsigned peer) {
        if (++polls_ % polls_between_looks != 0) return true;
        ground.expect_alone(load_word(&ground.station.control->at_work));
        if (!ground.well(ground.failed(), peer)) return false;
        uint64_t now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (began_ == 0) began_ = now;
        if (polls_ % polls_between_host_looks != 0) return true;
        const volatile HostWords* host = ground.station.host;
        const uint64_t deadline = host->deadline_ns;
        const bool aborted = host->abort != 0;
        if (!aborted && (deadline == 0 || now - began_ <= deadline)) return true;
        ground.give_up(aborted ? FaultKind::aborted : FaultKind::timed_out, peer);
        return false;
    }

private:
    unsigned polls_ = 0;
    uint64_t began_ = 0;  // as the first look saw it
};

// Until the flag at `at` is at least `value`.
__device__ inline bool wait_flag(KernelContext& ground, const char* at, uint64_t value, unsigned peer) {
    Wait wait;
    while (load_flag(at) < value)
        if (!wait.go_on(ground, peer)) return false;
    return true;
}

// Until the packet at `at`, which `packet` gets, has the flag.
__device__ inline bool wait_packet(KernelContext& ground, const char* at, Words& packet, uint32_t flag,
                                   unsigned peer) {
    Wait wait;
    packet = load_packet(at);
    while (!flagged(packet, flag)) {
        if (!wait.go_on(ground, peer)) return false;
        packet = load_packet(at);
    }
    return true;
}

// A line of four packets, of which the first three or all four carry a word. `acquires`: the peer's buffers are read
// next, which its stream wrote before the task.
__device__ inline void store_line(char* to, const uint64_t (&words)[4], uint32_t flag) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) store_packet(to + 16 * i, words[i], flag);
}
template <bool acquires = false>
__device__ inline bool wait_line(KernelContext& ground, const char* at, uint64_t (&words)[4], uint32_t flag,
                                 unsigned peer) {
    Wait wait;
    for (;;) {
        bool complete = true;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            // One of them is enough: each costs 0.2 us.
            const bool acquiring = acquires && i == 3;
            const Words packet = acquiring ? load_packet_acquiring(at + 16 * i) : load_packet(at + 16 * i);
            complete = complete && flagged(packet, flag);
            words[i] = payload_of(packet);
        }
        if (complete) return true;
        if (!wait.go_on(ground, peer)) return false;
    }
}

// Tokens as they travel in lines.
__device__ inline uint64_t packed(const Token& token) {
    return static_cast<uint64_t>(token.slot) << 48 | token.offset;
}
__device__ inline bool unreachable(uint64_t token) {
    return token >> 48 == Token::unreachable;
}
// So many bytes behind a token that rank `of` has posted. Null where they are not mapped here.
__device__ inline char* resolved(const KernelContext& ground, unsigned of, uint64_t token, uint64_t offset,
                                 uint64_t bytes) {
    const uint64_t from = (token & ((uint64_t{1} << 48) - 1)) + offset;
    return ground.find(of, static_cast<unsigned>(token >> 48), from, bytes);
}

}  // namespace sidestep::backends::cuda
