// Tasks of packets, in one or two phases. Every thread sends its own units to all, then waits for those of
// the others: no barrier and no fence. Unit i of a lane is bytes 8i to 8i+7 of the block, and one thread of
// the grid deals with all that has to do with it, so that blocks may be received where others were sent from.
#pragma once

#include "backends/cuda/collective/exchange.cuh"

namespace sidestep::backends::cuda {

// `group`: ranks whose packets are polled at a time. One unit of a thread is under way at a time: two made
// everything below 128 KiB 0.2 to 0.5 us slower between two H200 (docs/lab-book.md, "Lamport").
template <Element element, int group>
class Packets : Exchange<element, group> {
    using Base = Exchange<element, group>;

public:
    __device__ Packets(const CollectiveTask& task, const Station& station)
        : Base(task, station),
          two_phase_(task.shape == protocol::Shape::packets_two_phase),
          first_(Base::first_unit()),
          stride_(Base::unit_stride()) {}

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
    using Base::scales;

    __device__ void data() {
        send();
        const CollectiveTask& task = kernel_.task;
        if (task.combine == Combine::scaled_sum && !Base::learn_scales()) return;
        const bool combines = task.combine != Combine::none;
        if (!combines) copy_own();
        if (combines && !reduce()) return;
        if (!combines || two_phase_) receive(two_phase_ ? 1 : 0);
    }

    __device__ protocol::Block outgoing(unsigned rank) const {
        if (!two_phase_) return kernel_.task.to[rank];
        const Slice& slice = kernel_.task.slices[rank];
        return {slice.source_offset * sizeof(Bits), slice.count * sizeof(Bits)};
    }
    __device__ protocol::Block incoming(unsigned rank) const {
        if (!two_phase_) return kernel_.task.from[rank];
        const Slice& slice = kernel_.task.slices[rank];
        return {slice.target_offset * sizeof(Bits), slice.count * sizeof(Bits)};
    }

    static __device__ void put(char* lane, uint64_t at, uint64_t value, uint32_t flag) {
        store_packet(lane + 16 * at, value, flag);
    }

    __device__ void send() {
        const char* const send = static_cast<const char*>(kernel_.task.send);
        const uint64_t lane = kernel_.layout.packets(0, parity_, kernel_.rank);
        if (kernel_.station.alike)
            send_alike(send, lane);
        else
            send_each(send, lane);
    }

    __device__ void send_alike(const char* send, uint64_t lane) {
        const protocol::Block block = outgoing(rank_at(1));
#pragma unroll 1
        for (uint64_t at = first_; at < kernel_.station.send_units; at += stride_) {
            const unsigned bytes = bytes_at(block.bytes, at);
            if (!bytes) continue;
            const uint64_t value = load_up_to_8(send + block.offset + at * unit, bytes);
            each_peer([&](int, unsigned, char* arena) { put(arena + lane, at, value, flag_); });
        }
    }

    __device__ void send_each(const char* send, uint64_t lane) {
#pragma unroll 1
        for (uint64_t at = first_; at < kernel_.station.send_units; at += stride_) {
            uint64_t value[group];
            const auto load = [&](unsigned rank) -> uint64_t {
                const protocol::Block block = outgoing(rank);
                const unsigned bytes = bytes_at(block.bytes, at);
                return bytes ? load_up_to_8(send + block.offset + at * unit, bytes) : 0;
            };
#pragma unroll
            for (int i = 0; i < group; ++i)
                if (1u + i < kernel_.ranks) value[i] = load(rank_at(1 + i));
            each_peer([&](int i, unsigned rank, char* arena) {
                if (at * unit < outgoing(rank).bytes)
                    put(arena + lane, at, i < group ? value[i] : load(rank), flag_);
            });
        }
    }

    // Packets number `at` of the ranks from `begin` on, for whom `wanted` has bits. False: leave.
    __device__ bool take(Words (&packets)[group], unsigned wanted, unsigned phase, unsigned begin,
                         uint64_t at) {
        const char* const lanes = own_ + kernel_.layout.packets(phase, parity_, begin) + 16 * at;
        return Base::poll(packets, wanted, begin, lanes, kernel_.layout.packet_lane(),
                          [this](const Words& packet) { return flagged(packet, flag_); });
    }

    // Combines everybody's block, or slice, and in two phases sends the result to all. False: leave.
    __device__ bool reduce() {
        const protocol::Block source = outgoing(kernel_.rank);
        const protocol::Block target = incoming(kernel_.rank);
        const char* const send = static_cast<const char*>(kernel_.task.send) + source.offset;
        char* const recv = static_cast<char*>(kernel_.task.recv) + target.offset;
        const Rule<element> rule(kernel_.task, kernel_.ranks);
        const uint64_t units = (target.bytes + unit - 1) / unit;
#pragma unroll 1
        for (uint64_t at = first_; at < units; at += stride_) {
            const unsigned bytes = bytes_at(target.bytes, at);
            const uint64_t own = load_up_to_8(send + at * unit, bytes);
            Accumulator<element, 2> sum;
#pragma unroll 1
            for (unsigned begin = 0; begin < kernel_.ranks; begin += group)
                if (!combine(sum, own, begin, at, rule)) return false;
            uint32_t words[2];
            sum.give(words, rule);
            const uint64_t value = words[0] | static_cast<uint64_t>(words[1]) << 32;
            if (two_phase_) push(at, value);
            store_up_to_8(recv + at * unit, value, bytes);
        }
        return true;
    }

    __device__ bool combine(Accumulator<element, 2>& sum, uint64_t own, unsigned begin, uint64_t at,
                            const Rule<element>& rule) {
        Words packets[group];
        const unsigned wanted = Base::others_with([](unsigned) { return true; }, begin);
        if (!take(packets, wanted, 0, begin, at)) return false;
#pragma unroll
        for (int i = 0; i < group; ++i) {
            if (begin + i >= kernel_.ranks) continue;
            const uint64_t value = begin + i == kernel_.rank ? own : payload_of(packets[i]);
            const uint32_t words[2] = {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
            sum.take(words, begin + i == 0, rule, rule.scaled ? scales()[begin + i] : 0);
        }
        return true;
    }

    __device__ void push(uint64_t at, uint64_t value) const {
        const uint64_t lane = kernel_.layout.packets(1, parity_, kernel_.rank);
        each_peer([&](int, unsigned, char* arena) { put(arena + lane, at, value, flag_); });
    }

    __device__ void copy_own() const {
        const protocol::Block from = kernel_.task.to[kernel_.rank];
        const protocol::Block to = kernel_.task.from[kernel_.rank];
        const char* const send = static_cast<const char*>(kernel_.task.send) + from.offset;
        char* const recv = static_cast<char*>(kernel_.task.recv) + to.offset;
        if (send == recv) return;
#pragma unroll 1
        for (uint64_t at = first_; at * unit < from.bytes; at += stride_) {
            const unsigned bytes = bytes_at(from.bytes, at);
            store_up_to_8(recv + at * unit, load_up_to_8(send + at * unit, bytes), bytes);
        }
    }

    __device__ void receive(unsigned phase) {
        char* const recv = static_cast<char*>(kernel_.task.recv);
#pragma unroll 1
        for (uint64_t at = first_; at < kernel_.station.receive_units; at += stride_) {
#pragma unroll 1
            for (unsigned begin = 0; begin < kernel_.ranks; begin += group) {
                Words packets[group];
                const auto bytes_of = [&](unsigned rank) { return bytes_at(incoming(rank).bytes, at); };
                const unsigned wanted = Base::others_with(bytes_of, begin);
                if (!take(packets, wanted, phase, begin, at)) return;
#pragma unroll
                for (int i = 0; i < group; ++i)
                    if (wanted >> i & 1)
                        store_up_to_8(recv + incoming(begin + i).offset + at * unit, payload_of(packets[i]),
                                      bytes_of(begin + i));
            }
        }
    }

    using Bits = typename Form<element>::Bits;
    const bool two_phase_;
    const uint64_t first_;   // unit of this thread
    const uint64_t stride_;  // between two units of a thread
};

}  // namespace sidestep::backends::cuda
