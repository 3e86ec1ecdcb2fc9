// Tasks of Shape::coalesced: several small calls, whose packets lie one behind the other in one lane. Every thread sends
// its own units to all, then waits for those of the others, as in packets; a unit knows the call that it is of.
#pragma once

#include "backends/cuda/collective/exchange.cuh"

namespace sidestep::backends::cuda {

// `group`: ranks whose packets are polled at a time.
template <Element element, int group>
class Coalesced : Exchange<element, group> {
    using Base = Exchange<element, group>;

public:
    __device__ Coalesced(const CollectiveTask& task, const Station& station)
        : Base(task, station), first_(Base::first_unit()), stride_(Base::unit_stride()) {}

    __device__ void run() {
        if (!Base::enter(Base::look())) return;
        if (Base::is_data_thread())
            data();
        else
            Base::headers();
        Base::leave();
    }

private:
    using Base::each_peer;
    using Base::flag_;
    using Base::kernel_;
    using Base::own_;
    using Base::parity_;
    using Base::rank_at;

    // A unit of a lane: where it begins in the call's first block, here and there, and how far the next block is.
    struct Unit {
        const char* send;
        char* recv;
        uint64_t send_step;
        uint64_t recv_step;
        unsigned bytes;
        __device__ const char* to(unsigned rank) const { return send + rank * send_step; }
        __device__ char* from(unsigned rank) const { return recv + rank * recv_step; }
    };

    __device__ Unit unit_at(uint64_t at) const {
        const CollectiveTask& task = kernel_.task;
        unsigned i = 0;
        while (i + 1u < task.calls && task.call(i + 1).unit <= at) ++i;
        const protocol::CoalescedCall call = task.call(i);
        const uint64_t begin = (at - call.unit) * unit;
        return {static_cast<const char*>(task.send) + call.send + begin,
                static_cast<char*>(task.recv) + call.recv + begin, task.send_blocks ? call.bytes : 0,
                task.recv_blocks ? call.bytes : 0, bytes_at(call.bytes, at - call.unit)};
    }

    __device__ void data() {
        const uint64_t units = kernel_.station.send_units;
#pragma unroll 1
        for (uint64_t at = first_; at < units; at += stride_) send(unit_at(at), at);
        const CollectiveTask& task = kernel_.task;
        Rule<element> rule(task, kernel_.ranks);
        rule.scaled = false;  // calls with factors share no launch
#pragma unroll 1
        for (uint64_t at = first_; at < units; at += stride_) {
            const Unit one = unit_at(at);
            if (!(task.combine == Combine::none ? receive(one, at) : reduce(one, at, rule))) return;
        }
    }

    __device__ void send(const Unit& one, uint64_t at) const {
        const uint64_t lane = kernel_.layout.packets(0, parity_, kernel_.rank) + 16 * at;
        uint64_t value[group];
        value[0] = load_up_to_8(one.to(rank_at(1)), one.bytes);
#pragma unroll
        for (int i = 1; i < group; ++i)
            value[i] = one.send_step == 0 || 1u + i >= kernel_.ranks
                           ? value[0]
                           : load_up_to_8(one.to(rank_at(1 + i)), one.bytes);
        each_peer([&](int i, unsigned rank, char* arena) {
            store_packet(arena + lane, i < group ? value[i] : load_up_to_8(one.to(rank), one.bytes), flag_);
        });
    }

    // Packets number `at` of the other ranks from `begin` on. False: leave.
    __device__ bool take(Words (&packets)[group], unsigned begin, uint64_t at) {
        const unsigned wanted = Base::others_with([](unsigned) { return true; }, begin);
        const char* const lanes = own_ + kernel_.layout.packets(0, parity_, begin) + 16 * at;
        return Base::poll(packets, wanted, begin, lanes, kernel_.layout.packet_lane(),
                          [this](const Words& packet) { return flagged(packet, flag_); });
    }

    __device__ bool reduce(const Unit& one, uint64_t at, const Rule<element>& rule) {
        const uint64_t own = load_up_to_8(one.to(kernel_.rank), one.bytes);
        Accumulator<element, 2> sum;
#pragma unroll 1
        for (unsigned begin = 0; begin < kernel_.ranks; begin += group) {
            Words packets[group];
            if (!take(packets, begin, at)) return false;
#pragma unroll
            for (int i = 0; i < group; ++i) {
                if (begin + i >= kernel_.ranks) continue;
                const uint64_t value = begin + i == kernel_.rank ? own : payload_of(packets[i]);
                const uint32_t words[2] = {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
                sum.take(words, begin + i == 0, rule, 0);
            }
        }
        uint32_t words[2];
        sum.give(words, rule);
        store_up_to_8(one.recv, words[0] | static_cast<uint64_t>(words[1]) << 32, one.bytes);
        return true;
    }

    __device__ bool receive(const Unit& one, uint64_t at) {
        const char* const own = one.to(kernel_.rank);
        if (own != one.from(kernel_.rank))
            store_up_to_8(one.from(kernel_.rank), load_up_to_8(own, one.bytes), one.bytes);
#pragma unroll 1
        for (unsigned begin = 0; begin < kernel_.ranks; begin += group) {
            Words packets[group];
            if (!take(packets, begin, at)) return false;
#pragma unroll
            for (int i = 0; i < group; ++i)
                if (begin + i < kernel_.ranks && begin + i != kernel_.rank)
                    store_up_to_8(one.from(begin + i), payload_of(packets[i]), one.bytes);
        }
        return true;
    }

    const uint64_t first_;   // unit of this thread
    const uint64_t stride_;  // between two units of a thread
};

}  // namespace sidestep::backends::cuda
