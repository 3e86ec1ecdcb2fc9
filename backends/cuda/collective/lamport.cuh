// Tasks of Shape::lamport. Every thread sends its own units of 16 bytes to all ranks and keeps them. It empties what the lamport
// task before has left, waits until the same units of the other ranks are no longer empty, and combines them. There is no flag,
// no barrier and no fence. All of it is one pass, and plain cases have their own kernel: between two H200 each branch that is
// saved shows (docs/lab-book.md, "Lamport").
#pragma once

#include "backends/cuda/collective/exchange.cuh"

namespace sidestep::backends::cuda {

// What sends and receives are aligned to, and multiples of, in bytes: a whole unit, a word, or anything.
enum class Grain : unsigned { unit = 16, word = 4, byte = 1 };

// `group`: ranks whose units are polled at a time. `plain`: all ranks are sent the same bytes, which are also
// those that this rank combines, in whole, aligned units. One unit of a thread is under way at a time, as of
// packets.
template <Element element, int group, bool plain>
class Lamport : Exchange<element, group> {
    using Base = Exchange<element, group>;

public:
    __device__ Lamport(const CollectiveTask& task, const Station& station)
        : Base(task, station), first_(Base::first_unit()), stride_(Base::unit_stride()) {}

    __device__ void run() {
        if (!Base::enter(Base::look())) return;
        next_lamport_ = protocol::lamport_after(lamport_, units_of(target().bytes));
        if (Base::is_data_thread())
            data_of_any_grain();
        else
            Base::headers();
        Base::leave();
    }

private:
    using Base::each_peer;
    using Base::kernel_;
    using Base::lamport_;
    using Base::next_lamport_;
    using Base::own_;
    using Base::rank_at;
    using Base::scales;
    static constexpr unsigned size = protocol::lamport_unit;

    // A unit of this rank's own block that a thread has sent, or would send to itself.
    struct Own {
        Words unit;
        unsigned bytes;  // 0: there is none
    };

    static __device__ uint64_t units_of(uint64_t bytes) { return (bytes + size - 1) / size; }
    __device__ const protocol::Block& target() const { return kernel_.task.from[kernel_.rank]; }

    // Of a block's unit: 16, fewer at its end, 0 behind it.
    template <Grain grain>
    static __device__ unsigned bytes_at(uint64_t bytes, uint64_t at) {
        if (at * size >= bytes) return 0;
        const uint64_t left = bytes - at * size;
        return grain == Grain::unit || left >= size ? size : static_cast<unsigned>(left);
    }

    template <Grain grain>
    static __device__ Words load(const char* from, unsigned bytes) {
        if constexpr (grain == Grain::unit) {
            return load_packet(from);
        } else if constexpr (grain == Grain::byte) {
            return load_up_to_16(from, bytes);
        } else {
            Words value;
#pragma unroll
            for (unsigned w = 0; w < 4; ++w)
                value.at[w] = 4 * w < bytes ? load_unit<uint32_t>(from + 4 * w) : 0;
            return value;
        }
    }
    template <Grain grain>
    static __device__ void store(char* to, const Words& value, unsigned bytes) {
        if constexpr (grain == Grain::unit) {
            store16(to, value);
        } else if constexpr (grain == Grain::byte) {
            store_up_to_16(to, value, bytes);
        } else {
#pragma unroll
            for (unsigned w = 0; w < 4; ++w)
                if (4 * w < bytes) store_unit<uint32_t>(to + 4 * w, value.at[w]);
        }
    }

    static __device__ void put(char* lane, uint64_t at, const Words& value) {
        Words sent;
#pragma unroll
        for (unsigned w = 0; w < 4; ++w)
            sent.at[w] = value.at[w] == protocol::lamport_empty ? protocol::lamport_instead : value.at[w];
        store_words(lane + size * at, sent);
    }

    __device__ void data_of_any_grain() {
        const auto grain = plain ? Grain::unit : static_cast<Grain>(kernel_.station.grain);
        if (grain == Grain::unit)
            data<Grain::unit>();
        else if (grain == Grain::word)
            data<Grain::word>();
        else
            data<Grain::byte>();
    }

    template <Grain grain>
    __device__ void data() {
        const uint64_t units = max(units_of(target().bytes), kernel_.station.send_units);
        const Rule<element> rule(kernel_.task, kernel_.ranks);
        Own own;
        uint64_t at = first_;
#pragma unroll 1
        do {
            send<grain>(own, at);
            if (at == first_) {
                empty();
                if (rule.scaled && !Base::learn_scales()) return;
            }
            if (!reduce<grain>(own, at, rule)) return;
            at += stride_;
        } while (at < units);
    }

    template <Grain grain>
    __device__ void send(Own& own, uint64_t at) {
        const protocol::Block source = kernel_.task.to[kernel_.rank];
        const char* const send = static_cast<const char*>(kernel_.task.send);
        const uint64_t lane = kernel_.layout.lamport(protocol::lamport_set(lamport_), kernel_.rank);
        own.bytes = bytes_at<grain>(target().bytes, at);
        if (own.bytes) own.unit = load<grain>(send + source.offset + at * size, own.bytes);
        each_peer([&](int, unsigned rank, char* arena) {
            if constexpr (plain) {
                if (own.bytes) put(arena + lane, at, own.unit);
            } else {
                const protocol::Block block = kernel_.task.to[rank];
                const unsigned bytes = bytes_at<grain>(block.bytes, at);
                if (bytes) put(arena + lane, at, load<grain>(send + block.offset + at * size, bytes));
            }
        });
    }

    // What the lamport task before was sent, which it has read.
    __device__ void empty() const {
        constexpr uint32_t none = protocol::lamport_empty;
        const uint64_t units = protocol::lamport_left(lamport_);
        char* const lanes = own_ + kernel_.layout.lamport(protocol::lamport_stale_set(lamport_), 0);
#pragma unroll 1
        for (uint64_t at = first_; at < units; at += stride_)
#pragma unroll 1
            for (unsigned rank = 0; rank < kernel_.ranks; ++rank)
                store_words(lanes + rank * kernel_.layout.lamport_payload() + size * at,
                            Words{{none, none, none, none}});
    }

    static __device__ bool is_here(const Words& unit) {
        return unit.at[0] != protocol::lamport_empty && unit.at[1] != protocol::lamport_empty &&
               unit.at[2] != protocol::lamport_empty && unit.at[3] != protocol::lamport_empty;
    }

    // False: leave.
    template <Grain grain>
    __device__ bool reduce(const Own& own, uint64_t at, const Rule<element>& rule) {
        Accumulator<element, 4> sum;
#pragma unroll 1
        for (unsigned begin = 0; begin < kernel_.ranks; begin += group)
            if (!combine(sum, own, begin, at, rule)) return false;
        if (!own.bytes) return true;
        Words result;
        sum.give(result.at, rule);
        char* const recv = static_cast<char*>(kernel_.task.recv) + target().offset;
        store<grain>(recv + at * size, result, own.bytes);
        return true;
    }

    __device__ bool combine(Accumulator<element, 4>& sum, const Own& own, unsigned begin, uint64_t at,
                            const Rule<element>& rule) {
        Words units[group];
        const unsigned wanted = Base::others_with([&](unsigned) { return own.bytes; }, begin);
        const char* const lanes =
            own_ + kernel_.layout.lamport(protocol::lamport_set(lamport_), begin) + size * at;
        if (!Base::poll(units, wanted, begin, lanes, kernel_.layout.lamport_payload(), is_here)) return false;
        if (!own.bytes) return true;
#pragma unroll
        for (int i = 0; i < group; ++i) {
            if (begin + i >= kernel_.ranks) continue;
            const bool mine = begin + i == kernel_.rank;
            Words words;
#pragma unroll
            for (unsigned w = 0; w < 4; ++w) words.at[w] = mine ? own.unit.at[w] : units[i].at[w];
            sum.take(words.at, begin + i == 0, rule, rule.scaled ? scales()[begin + i] : 0);
        }
        return true;
    }

    const uint64_t first_;   // unit of this thread
    const uint64_t stride_;  // between two units of a thread
};

}  // namespace sidestep::backends::cuda
