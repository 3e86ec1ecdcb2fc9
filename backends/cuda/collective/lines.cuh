// Tasks of lines: two phases whose flags travel with the data, 8 bytes for each 120 (the protocol NCCL calls
// LL128: what one instruction of a warp stores to an aligned line of 128 bytes arrives as a whole over
// NVLink). A warp works on rows of four lines: it sends its rows of the slices that this rank is a source of,
// combines its rows of this rank's slice and sends the results, and takes its rows of the results of the
// others. So the same thread reads and writes a unit of a buffer.
#pragma once

#include "backends/cuda/collective/exchange.cuh"

namespace sidestep::backends::cuda {

// A thread's part of a line, or nothing. Eight threads in a row make one line, and reach this together.
__device__ inline void store_part(char* to, const Words& part, bool wanted) {
    asm volatile(
        "{ .reg .pred wanted; setp.ne.u32 wanted, %5, 0; @wanted st.volatile.global.v4.u32 [%0], {%1, %2, "
        "%3, %4}; }" ::"l"(to),
        "r"(part.at[0]), "r"(part.at[1]), "r"(part.at[2]), "r"(part.at[3]), "r"(static_cast<uint32_t>(wanted))
        : "memory");
}

// What a kernel of lines is for: asking for more costs registers, and with them threads.
enum class LinesOf {
    all,         // all ranks are sources and targets of every slice, which is combined
    some,        // not all of them are; combined
    one_source,  // of bytes, which nothing is combined with
};

// `group`: ranks whose lines are polled at a time. Where it is more than four, there may be more ranks than
// that, and sums are carried along.
template <Element element, int group, LinesOf kind>
class Lines : Exchange<element, group> {
    using Base = Exchange<element, group>;
    using Bits = typename Form<element>::Bits;
    using Sum = Accumulator<element, 4>;

public:
    __device__ Lines(const CollectiveTask& task, const Station& station)
        : Base(task, station),
          first_(uint64_t{blockIdx.x} * (blockDim.x - header_threads) / 32 + threadIdx.x / 32),
          stride_(uint64_t{gridDim.x} * (blockDim.x - header_threads) / 32),
          line_(threadIdx.x % 32 / 8),
          place_(line_ * units_a_line + threadIdx.x % 8),
          closes_(threadIdx.x % 8 == 7) {}

    __device__ void run() {
        const Words head = Base::look();
        // What is sent first is loaded while the epoch still comes.
        Words ahead[others];
        const bool loads_ahead = Base::is_data_thread() && is_whole(first_);
        if (loads_ahead) fetch<true>(ahead, 1, first_);
        if (!Base::enter(head)) return;
        flag_ = protocol::line_flag(Base::epoch_);
        if (Base::is_data_thread())
            data(ahead, loads_ahead);
        else
            Base::headers();
        Base::leave();
    }

private:
    using Base::kernel_;
    using Base::own_;
    using Base::peers_;
    using Base::rank_at;
    using Base::scales;

    static constexpr bool carries = group > 4;
    static constexpr bool every = kind == LinesOf::all;
    static constexpr bool moves = kind == LinesOf::one_source;
    static constexpr int others = group - 1;  // that are sent to at a time
    static constexpr unsigned units_a_line = protocol::line_payload / unit;
    static constexpr unsigned units_a_row = protocol::row_payload / unit;

    // Whether all units of the row are whole and aligned.
    __device__ bool is_whole(uint64_t row) const { return row < kernel_.station.whole_rows; }

    __device__ void data(Words (&ahead)[others], bool loaded_ahead) {
        if (loaded_ahead) {
            push(ahead, 1, first_);
            if constexpr (carries) send_from<true>(1 + others, first_);
        }
        const uint64_t begin = loaded_ahead ? first_ + stride_ : first_;
        each_row(begin, kernel_.station.send_units,
                 [this](auto whole, uint64_t row) { return send(whole, row); });
        // A warp stays or leaves as a whole, since its threads wait for each other.
        const bool scaled = kernel_.task.combine == Combine::scaled_sum;
        if (scaled && !__all_sync(~0u, Base::learn_scales())) return;
        const uint64_t own = (bytes_of(kernel_.rank) + protocol::row_payload - 1) / protocol::row_payload;
        if (!each_row(first_, own, [this](auto whole, uint64_t row) { return reduce(whole, row); })) return;
        if (!each_row(first_, kernel_.station.receive_units,
                      [this](auto whole, uint64_t row) { return receive(whole, row); }))
            return;
        if (moves && kernel_.task.local_bytes > 0) copy_locally();
    }

    // In units of 16 bytes where they lie so.
    __device__ void copy_locally() const {
        const CollectiveTask& task = kernel_.task;
        const char* const from = static_cast<const char*>(task.send) + task.local_from;
        char* const to = static_cast<char*>(task.recv) + task.local_to;
        const uint64_t step = stride_ * 32;
        const bool aligned = (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16 == 0;
        const uint64_t wide = aligned ? task.local_bytes / 16 : 0;
        const uint64_t thread = first_ * 32 + threadIdx.x % 32;
        for (uint64_t at = thread; at < wide; at += step) store16(to + at * 16, load16(from + at * 16));
        for (uint64_t at = wide * 16 / unit + thread; at * unit < task.local_bytes; at += step) {
            const unsigned bytes = bytes_at(task.local_bytes, at);
            store_up_to_8(to + at * unit, load_up_to_8(from + at * unit, bytes), bytes);
        }
    }

    // A type for each of both, so that code where no unit needs a second look is short.
    template <bool is>
    struct Whole {
        static constexpr bool value = is;
    };
    // act(whole, row) for all rows of this warp, from `begin` on. False: leave.
    template <typename Act>
    __device__ bool each_row(uint64_t begin, uint64_t rows, Act act) {
#pragma unroll 1
        for (uint64_t row = begin; row < rows; row += stride_)
            if (!(is_whole(row) ? act(Whole<true>{}, row) : act(Whole<false>{}, row))) return false;
        return true;
    }

    __device__ uint64_t bytes_of(unsigned owner) const {
        return kernel_.task.slices[owner].count * sizeof(Bits);
    }
    // What a source sends the owner of a slice, and what the owner sends a target.
    __device__ uint64_t from_source(unsigned source, unsigned owner) const {
        return every || (kernel_.task.slices[owner].sources >> source & 1) ? bytes_of(owner) : 0;
    }
    __device__ uint64_t to_target(unsigned owner, unsigned target) const {
        return every || (kernel_.task.slices[owner].targets >> target & 1) ? bytes_of(owner) : 0;
    }
    __device__ const char* source_of(unsigned rank) const {
        return static_cast<const char*>(kernel_.task.send) +
               kernel_.task.slices[rank].source_offset * sizeof(Bits);
    }
    __device__ char* target_of(unsigned rank) const {
        return static_cast<char*>(kernel_.task.recv) + kernel_.task.slices[rank].target_offset * sizeof(Bits);
    }

    // Whether a slice reaches into this thread's line of a row. Alike for the eight threads of a line.
    __device__ bool reaches(uint64_t bytes, uint64_t row) const {
        return (row * protocol::row_lines + line_) * protocol::line_payload < bytes;
    }

    // This thread's part of a line: unit `place_` of the row, and the one 8 further on, or room for the flag
    // in the thread that closes the line.
    template <bool whole>
    __device__ Words load(const char* from, uint64_t bytes, uint64_t row) const {
        const uint64_t at = row * units_a_row + place_;
        const uint64_t low = load_one<whole>(from, bytes, at);
        const uint64_t high = closes_ ? 0 : load_one<whole>(from, bytes, at + 8);
        return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
                static_cast<uint32_t>(high >> 32)};
    }
    template <bool whole>
    static __device__ uint64_t load_one(const char* from, uint64_t bytes, uint64_t at) {
        const unsigned length = bytes_at(bytes, at);
        if (length == 0) return 0;
        return whole ? load_unit<uint64_t>(from + at * unit) : load_up_to_8(from + at * unit, length);
    }
    template <bool whole>
    __device__ void store(char* to, uint64_t bytes, uint64_t row, const Words& part) const {
        const uint64_t at = row * units_a_row + place_;
        store_one<whole>(to, bytes, at, part.at[0] | static_cast<uint64_t>(part.at[1]) << 32);
        if (!closes_)
            store_one<whole>(to, bytes, at + 8, part.at[2] | static_cast<uint64_t>(part.at[3]) << 32);
    }
    template <bool whole>
    static __device__ void store_one(char* to, uint64_t bytes, uint64_t at, uint64_t value) {
        const unsigned length = bytes_at(bytes, at);
        if (length == 0) return;
        if (whole)
            store_unit(to + at * unit, value);
        else
            store_up_to_8(to + at * unit, value, length);
    }

    // Where this thread's part of a row lies in a lane.
    static __device__ uint64_t place_of(uint64_t row) {
        return row * protocol::row_bytes + threadIdx.x % 32 * sizeof(Words);
    }

    __device__ void seal(Words& part) const {
        if (!closes_) return;
        part.at[2] = static_cast<uint32_t>(flag_);
        part.at[3] = static_cast<uint32_t>(flag_ >> 32);
    }

    template <typename Whole>
    __device__ bool send(Whole, uint64_t row) {
        send_from<Whole::value>(1, row);
        return true;
    }
    // To the ranks that come `begin` places and more behind this one.
    template <bool whole>
    __device__ void send_from(unsigned begin, uint64_t row) {
#pragma unroll 1
        for (; begin < kernel_.ranks; begin += others) {
            Words parts[others];
            fetch<whole>(parts, begin, row);
            push(parts, begin, row);
        }
    }
    template <bool whole>
    __device__ void fetch(Words (&parts)[others], unsigned begin, uint64_t row) const {
#pragma unroll
        for (int i = 0; i < others; ++i) {
            if (begin + i >= kernel_.ranks) continue;
            const unsigned rank = rank_at(begin + i);
            parts[i] = load<whole>(source_of(rank), from_source(kernel_.rank, rank), row);
        }
    }
    __device__ void push(Words (&parts)[others], unsigned begin, uint64_t row) const {
        const uint64_t at = kernel_.layout.lines(0, Base::parity_, kernel_.rank) + place_of(row);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < others; ++i) {
            if (begin + i >= kernel_.ranks) continue;
            const unsigned rank = rank_at(begin + i);
            char* const arena = begin == 1 ? peers_[i] : kernel_.arena(rank);
            seal(parts[i]);
            store_part(arena + at, parts[i], reaches(from_source(kernel_.rank, rank), row));
        }
    }

    // Bit i: rank begin + i sends a line to this thread's place: of its results, or of what it has of this
    // rank's slice.
    __device__ unsigned awaited(bool results, unsigned begin, uint64_t row) const {
        unsigned bits = 0;
#pragma unroll
        for (int i = 0; i < group; ++i) {
            const unsigned rank = begin + i;
            if (rank >= kernel_.ranks || rank == kernel_.rank) continue;
            const uint64_t bytes = results ? to_target(rank, kernel_.rank) : from_source(rank, kernel_.rank);
            if (reaches(bytes, row)) bits |= 1u << i;
        }
        return bits;
    }

    // Loads whole rows until all that is awaited has come; what has come is not loaded again. False: leave.
    __device__ bool poll(Words (&parts)[group], unsigned awaited, unsigned phase, unsigned begin,
                         uint64_t row) {
        const char* const lanes = own_ + kernel_.layout.lines(phase, Base::parity_, begin) + place_of(row);
        const uint64_t lane = kernel_.layout.lines_stride();
        unsigned missing = __reduce_or_sync(~0u, awaited);
        Wait wait;
#pragma unroll 1
        while (missing != 0) {
            __syncwarp();
#pragma unroll
            for (int i = 0; i < group; ++i)
                if (missing >> i & 1) parts[i] = load_packet(lanes + i * lane);
            unsigned late = 0;
#pragma unroll
            for (int i = 0; i < group; ++i) {
                const bool come = parts[i].at[2] == static_cast<uint32_t>(flag_) &&
                                  parts[i].at[3] == static_cast<uint32_t>(flag_ >> 32);
                if (closes_ && !come) late |= 1u << i;
            }
            missing = __reduce_or_sync(~0u, late & awaited);
            if (missing == 0) break;
            const unsigned peer = begin + __ffs(static_cast<int>(missing)) - 1;
            if (__any_sync(~0u, !wait.go_on(kernel_, peer))) return false;
        }
        return true;
    }

    // Combines a row of this rank's slice, and sends the result to all. False: leave.
    template <typename Whole>
    __device__ bool reduce(Whole, uint64_t row) {
        constexpr bool whole = Whole::value;
        Words own = load<whole>(source_of(kernel_.rank), from_source(kernel_.rank, kernel_.rank), row);
        bool come;
        if constexpr (moves)
            come = move(own, row);
        else
            come = combine(own, row);
        if (!come) return false;
        seal(own);
        __syncwarp();
        const uint64_t at = kernel_.layout.lines(1, Base::parity_, kernel_.rank) + place_of(row);
        Base::each_peer([&](int, unsigned rank, char* arena) {
            store_part(arena + at, own, reaches(to_target(kernel_.rank, rank), row));
        });
        store<whole>(target_of(kernel_.rank), to_target(kernel_.rank, kernel_.rank), row, own);
        return true;
    }

    // `part` holds this rank's bytes, if it is the source, and then the source's. False: leave.
    __device__ bool move(Words& part, uint64_t row) {
        const unsigned source = __ffs(kernel_.task.slices[kernel_.rank].sources) - 1;
        if (source == kernel_.rank) return true;
        const unsigned begin = source / group * group;
        Words come[group];
        if (!poll(come, awaited(false, begin, row), 0, begin, row)) return false;
#pragma unroll
        for (int i = 0; i < group; ++i)
            if (begin + i == source) part = come[i];
        return true;
    }

    // `part` holds this rank's elements, and then the result. False: leave.
    __device__ bool combine(Words& part, uint64_t row) {
        const Rule<element> rule(kernel_.task, kernel_.ranks);
        Sum sum;
        unsigned begin = 0;
#pragma unroll 1
        do {
            Words come[group];
            if (!poll(come, awaited(false, begin, row), 0, begin, row)) return false;
#pragma unroll
            for (int i = 0; i < group; ++i) {
                const unsigned rank = begin + i;
                if (rank >= kernel_.ranks) continue;
                const Words given = rank == kernel_.rank ? part : come[i];
                sum.take(given.at, rank == 0, rule, rule.scaled ? scales()[rank] : 0);
            }
            begin += group;
        } while (carries && begin < kernel_.ranks);
        sum.give(part.at, rule);
        return true;
    }

    template <typename Whole>
    __device__ bool receive(Whole, uint64_t row) {
#pragma unroll 1
        for (unsigned begin = 0; begin < kernel_.ranks; begin += group) {
            Words parts[group];
            if (!poll(parts, awaited(true, begin, row), 1, begin, row)) return false;
#pragma unroll
            for (int i = 0; i < group; ++i) {
                const unsigned rank = begin + i;
                if (rank >= kernel_.ranks || rank == kernel_.rank) continue;
                store<Whole::value>(target_of(rank), to_target(rank, kernel_.rank), row, parts[i]);
            }
        }
        return true;
    }

    const uint64_t first_;   // row of this warp
    const uint64_t stride_;  // between two rows of a warp
    const unsigned line_;    // of a row, that this thread has a part of
    const unsigned place_;   // this thread's first unit in a row
    const bool closes_;      // its line: carries the flag
    uint64_t flag_ = 0;
};

}  // namespace sidestep::backends::cuda
