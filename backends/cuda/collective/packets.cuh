// Tasks of packets, in one or two phases. Every thread sends its own units to all, then waits for those of
// the others: no barrier and no fence. Unit i of a lane is bytes 8i to 8i+7 of the block, and one thread of
// the grid deals with all that has to do with it, so that blocks may be received where others were sent from.
#pragma once

#include "backends/cuda/collective/exchange.cuh"

namespace sidestep::backends::cuda {

// `group`: ranks whose packets are polled at a time. `batch`: units of a thread that are under way at a time.
template <Element element, int group, int batch>
class Packets : Exchange<element, group> {
    using Base = Exchange<element, group>;

public:
    __device__ Packets(const CollectiveTask& task, const Station& station)
        : Base(task, station),
          two_phase_(task.shape == backend::Shape::packets_two_phase),
          first_(uint64_t{blockIdx.x} * (blockDim.x - header_threads) + threadIdx.x),
          stride_(uint64_t{gridDim.x} * (blockDim.x - header_threads)) {}

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
    using Base::ground_;
    using Base::own_;
    using Base::parity_;
    using Base::rank_at;
    using Base::scales;

    __device__ void data() {
        send();
        const CollectiveTask& task = ground_.task;
        if (task.combine == Combine::scaled_sum && !Base::learn_scales()) return;
        const bool combines = task.combine != Combine::none;
        if (!combines) copy_own();
        if (combines && !reduce()) return;
        if (!combines || two_phase_) receive(two_phase_ ? 1 : 0);
    }

    __device__ backend::Block outgoing(unsigned rank) const {
        if (!two_phase_) return ground_.task.to[rank];
        const Slice& slice = ground_.task.slices[rank];
        return {slice.source_offset * sizeof(Bits), slice.count * sizeof(Bits)};
    }
    __device__ backend::Block incoming(unsigned rank) const {
        if (!two_phase_) return ground_.task.from[rank];
        const Slice& slice = ground_.task.slices[rank];
        return {slice.target_offset * sizeof(Bits), slice.count * sizeof(Bits)};
    }

    static __device__ void put(char* lane, uint64_t at, uint64_t value, uint32_t flag) {
        store_packet(lane + 16 * at, static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32), flag);
    }

    __device__ void send() {
        const char* const send = static_cast<const char*>(ground_.task.send);
        const uint64_t lane = ground_.layout.packets(0, parity_, ground_.rank);
        if (ground_.station.alike)
            send_alike(send, lane);
        else
            send_each(send, lane);
    }

    __device__ void send_alike(const char* send, uint64_t lane) {
        const backend::Block block = outgoing(rank_at(1));
#pragma unroll 1
        for (uint64_t at = first_; at < ground_.station.send_units; at += batch * stride_) {
            uint64_t value[batch];
            unsigned bytes[batch];
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                bytes[b] = bytes_at(block.bytes, at + b * stride_);
                if (bytes[b])
                    value[b] = load_up_to_8(send + block.offset + (at + b * stride_) * unit, bytes[b]);
            }
            each_peer([&](int, unsigned, char* arena) {
#pragma unroll
                for (int b = 0; b < batch; ++b)
                    if (bytes[b]) put(arena + lane, at + b * stride_, value[b], flag_);
            });
        }
    }

    __device__ void send_each(const char* send, uint64_t lane) {
#pragma unroll 1
        for (uint64_t at = first_; at < ground_.station.send_units; at += stride_) {
            uint64_t value[group];
            const auto load = [&](unsigned rank) -> uint64_t {
                const backend::Block block = outgoing(rank);
                const unsigned bytes = bytes_at(block.bytes, at);
                return bytes ? load_up_to_8(send + block.offset + at * unit, bytes) : 0;
            };
#pragma unroll
            for (int i = 0; i < group; ++i)
                if (1u + i < ground_.ranks) value[i] = load(rank_at(1 + i));
            each_peer([&](int i, unsigned rank, char* arena) {
                if (at * unit < outgoing(rank).bytes)
                    put(arena + lane, at, i < group ? value[i] : load(rank), flag_);
            });
        }
    }

    // Packets of the ranks from `begin` on, for whom `wanted` has bits. False: leave.
    __device__ bool poll(Words (&packets)[batch][group], const unsigned (&wanted)[batch], unsigned phase,
                         unsigned begin, uint64_t at) {
        const char* const lanes = own_ + ground_.layout.packets(phase, parity_, begin) + 16 * at;
        const uint64_t lane = ground_.layout.packet_lane();
        Wait wait;
#pragma unroll 1
        for (;;) {
#pragma unroll
            for (int b = 0; b < batch; ++b)
#pragma unroll
                for (int i = 0; i < group; ++i)
                    if (wanted[b] >> i & 1) packets[b][i] = load_packet(lanes + i * lane + 16 * b * stride_);
            unsigned missing = ~0u;
#pragma unroll
            for (int b = 0; b < batch; ++b)
#pragma unroll
                for (int i = 0; i < group; ++i)
                    if ((wanted[b] >> i & 1) && !flagged(packets[b][i], flag_)) missing = i;
            if (missing == ~0u) return true;
            if (!wait.go_on(ground_, begin + missing)) return false;
        }
    }

    // Combines everybody's block, or slice, and in two phases sends the result to all. False: leave.
    __device__ bool reduce() {
        const backend::Block source = outgoing(ground_.rank);
        const backend::Block target = incoming(ground_.rank);
        const char* const send = static_cast<const char*>(ground_.task.send) + source.offset;
        char* const recv = static_cast<char*>(ground_.task.recv) + target.offset;
        const Rule<element> rule(ground_.task, ground_.ranks);
        const uint64_t units = (target.bytes + unit - 1) / unit;
#pragma unroll 1
        for (uint64_t at = first_; at < units; at += batch * stride_) {
            unsigned bytes[batch];
            uint64_t own[batch];
            Accumulator<element, 2> sum[batch];
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                bytes[b] = bytes_at(target.bytes, at + b * stride_);
                if (bytes[b]) own[b] = load_up_to_8(send + (at + b * stride_) * unit, bytes[b]);
            }
#pragma unroll 1
            for (unsigned begin = 0; begin < ground_.ranks; begin += group)
                if (!combine(sum, bytes, own, begin, at, rule)) return false;
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                if (!bytes[b]) continue;
                uint32_t words[2];
                sum[b].give(words, rule);
                const uint64_t value = words[0] | static_cast<uint64_t>(words[1]) << 32;
                if (two_phase_) push(at + b * stride_, value);
                store_up_to_8(recv + (at + b * stride_) * unit, value, bytes[b]);
            }
        }
        return true;
    }

    __device__ bool combine(Accumulator<element, 2> (&sum)[batch], const unsigned (&bytes)[batch],
                            const uint64_t (&own)[batch], unsigned begin, uint64_t at,
                            const Rule<element>& rule) {
        Words packets[batch][group];
        unsigned wanted[batch];
#pragma unroll
        for (int b = 0; b < batch; ++b) {
            wanted[b] = 0;
#pragma unroll
            for (int i = 0; i < group; ++i)
                if (bytes[b] && begin + i < ground_.ranks && begin + i != ground_.rank) wanted[b] |= 1u << i;
        }
        if (!poll(packets, wanted, 0, begin, at)) return false;
#pragma unroll
        for (int b = 0; b < batch; ++b)
#pragma unroll
            for (int i = 0; i < group; ++i) {
                if (!bytes[b] || begin + i >= ground_.ranks) continue;
                const bool mine = begin + i == ground_.rank;
                const uint32_t words[2] = {mine ? static_cast<uint32_t>(own[b]) : packets[b][i].at[0],
                                           mine ? static_cast<uint32_t>(own[b] >> 32) : packets[b][i].at[2]};
                sum[b].take(words, begin + i == 0, rule, rule.scaled ? scales()[begin + i] : 0);
            }
        return true;
    }

    __device__ void push(uint64_t at, uint64_t value) const {
        const uint64_t lane = ground_.layout.packets(1, parity_, ground_.rank);
        each_peer([&](int, unsigned, char* arena) { put(arena + lane, at, value, flag_); });
    }

    __device__ void copy_own() const {
        const backend::Block from = ground_.task.to[ground_.rank];
        const backend::Block to = ground_.task.from[ground_.rank];
        const char* const send = static_cast<const char*>(ground_.task.send) + from.offset;
        char* const recv = static_cast<char*>(ground_.task.recv) + to.offset;
        if (send == recv) return;
#pragma unroll 1
        for (uint64_t at = first_; at * unit < from.bytes; at += stride_) {
            const unsigned bytes = bytes_at(from.bytes, at);
            store_up_to_8(recv + at * unit, load_up_to_8(send + at * unit, bytes), bytes);
        }
    }

    __device__ void receive(unsigned phase) {
        char* const recv = static_cast<char*>(ground_.task.recv);
#pragma unroll 1
        for (uint64_t at = first_; at < ground_.station.receive_units; at += batch * stride_) {
#pragma unroll 1
            for (unsigned begin = 0; begin < ground_.ranks; begin += group) {
                Words packets[batch][group];
                unsigned wanted[batch];
#pragma unroll
                for (int b = 0; b < batch; ++b) {
                    wanted[b] = 0;
#pragma unroll
                    for (int i = 0; i < group; ++i)
                        if (begin + i < ground_.ranks && begin + i != ground_.rank &&
                            bytes_at(incoming(begin + i).bytes, at + b * stride_))
                            wanted[b] |= 1u << i;
                }
                if (!poll(packets, wanted, phase, begin, at)) return;
#pragma unroll
                for (int b = 0; b < batch; ++b)
#pragma unroll
                    for (int i = 0; i < group; ++i) {
                        if (!(wanted[b] >> i & 1)) continue;
                        const backend::Block block = incoming(begin + i);
                        const uint64_t value =
                            packets[b][i].at[0] | static_cast<uint64_t>(packets[b][i].at[2]) << 32;
                        store_up_to_8(recv + block.offset + (at + b * stride_) * unit, value,
                                      bytes_at(block.bytes, at + b * stride_));
                    }
            }
        }
    }

    using Bits = typename Form<element>::Bits;
    const bool two_phase_;
    const uint64_t first_;   // unit of this thread
    const uint64_t stride_;  // between two units of a thread
};

}  // namespace sidestep::backends::cuda
