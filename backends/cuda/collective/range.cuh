// What the first `workers` threads of a block do with a range of bytes: copy it to one or several places, or
// combine it from several. Any alignment; nothing beside the range is touched.
#pragma once

#include "backends/cuda/collective/elements.cuh"

namespace sidestep::backends::cuda {

// Where a range lies at its sources, in the order in which they are combined, and at its targets. In shared
// memory.
struct Ends {
    const char* from[protocol::max_ranks];
    char* to[protocol::max_ranks];
    uint64_t scale[protocol::max_ranks];  // of each source, for scaled_sum
    unsigned sources;
    unsigned targets;
};

// A range cut into 16-byte units that lie at a boundary of 16 for the first source, and what is left at both
// ends. No units where the sources and targets do not all lie alike.
struct Cut {
    uint64_t units_at;  // bytes
    uint64_t units;
    uint64_t bytes;

    // `size`: of an element, none of which is cut.
    __device__ Cut(const Ends& ends, uint64_t length, unsigned size)
        : units_at(length), units(0), bytes(length) {
        const unsigned first = misalignment(ends.from[0]);
        bool even = first % size == 0;
#pragma unroll 1
        for (unsigned i = 1; i < ends.sources; ++i) even = even && misalignment(ends.from[i]) == first;
#pragma unroll 1
        for (unsigned i = 0; i < ends.targets; ++i) even = even && misalignment(ends.to[i]) == first;
        const unsigned head = (16 - first) % 16;
        if (!even || head >= bytes) return;
        units_at = head;
        units = (bytes - head) / 16;
    }

    // What is in no units, of both ends and in pieces of 8 bytes at most: a thread each moves them at the same time,
    // where one end after the other waited for its loads twice.
    struct Piece {
        uint64_t at;
        unsigned bytes;
    };
    __device__ uint64_t pieces() const {
        return head_pieces() + (bytes - tail_at() + 7) / 8;
    }
    __device__ Piece piece(uint64_t index) const {
        const bool head = index < head_pieces();
        const uint64_t at = head ? 8 * index : tail_at() + 8 * (index - head_pieces());
        const uint64_t left = (head ? units_at : bytes) - at;
        return {at, left < 8 ? static_cast<unsigned>(left) : 8};
    }

private:
    __device__ uint64_t head_pieces() const {
        return (units_at + 7) / 8;
    }
    __device__ uint64_t tail_at() const {
        return units_at + units * 16;
    }
};

// Whether so many blocks are at work that each thread needs few loads under way. Some blocks then read while
// others write, and links carry both ways at a time. Few blocks need many loads each, or links stand idle
// (docs/lab-book.md, "Loads under way").
__device__ inline bool many_blocks() {
    return gridDim.x >= 16;
}

// Copies a range to its targets.
class Copying {
public:
    // All workers. No part of its caller, whose values would take registers from it. `batch`: loads of a thread that are
    // under way at a time where many blocks are at work.
    template <int batch = 2>
    static __device__ __noinline__ void run(const Ends& ends, uint64_t bytes, unsigned workers) {
        const Cut cut(ends, bytes, 1);
        if (cut.units == 0) return run_shifted(ends, bytes, workers);
        if (many_blocks())
            units<batch>(ends, cut, workers);
        else
            units<8>(ends, cut, workers);
        rest(ends, cut, workers);
    }

private:
    static constexpr int shifted = 4;

    template <int batch>
    static __device__ void units(const Ends& ends, const Cut& cut, unsigned workers) {
        const char* const from = ends.from[0] + cut.units_at;
#pragma unroll 1
        for (uint64_t at = threadIdx.x; at < cut.units; at += batch * workers) {
            Words value[batch];
#pragma unroll
            for (int b = 0; b < batch; ++b)
                value[b] = at + b * workers < cut.units ? load16(from + 16 * (at + b * workers)) : Words{};
#pragma unroll 1
            for (unsigned i = 0; i < ends.targets; ++i) {
                char* const to = ends.to[i] + cut.units_at;
#pragma unroll
                for (int b = 0; b < batch; ++b)
                    if (at + b * workers < cut.units) store16(to + 16 * (at + b * workers), value[b]);
            }
        }
    }

    // Where the targets lie alike, and the source otherwise. A function of its own, since its registers would
    // cost the usual way half a microsecond.
    static __device__ __noinline__ void run_shifted(const Ends& ends, uint64_t bytes, unsigned workers) {
        Cut cut(ends, bytes, 1);
        shifted_units(ends, cut, workers);
        rest(ends, cut, workers);
    }

    // Units that lie at a boundary of 16 for the targets, each out of two aligned words of the source that
    // lie within the range as well. None where the targets differ.
    static __device__ void shifted_units(const Ends& ends, Cut& cut, unsigned workers) {
        const unsigned first = misalignment(ends.to[0]);
        bool even = true;
#pragma unroll 1
        for (unsigned i = 1; i < ends.targets; ++i) even = even && misalignment(ends.to[i]) == first;
        uint64_t head = (16 - first) % 16;
        const unsigned shift = misalignment(ends.from[0] + head);
        if (head < shift) head += 16;
        if (!even || shift == 0 || cut.bytes < head - shift + 32) return;
        cut.units_at = head;
        cut.units = (cut.bytes - (head - shift)) / 16 - 1;
        const char* const from = ends.from[0] + (head - shift);
        const unsigned step = workers;
#pragma unroll 1
        for (uint64_t at = threadIdx.x; at < cut.units; at += shifted * step) {
            Words low[shifted];
            Words high[shifted];
#pragma unroll
            for (int b = 0; b < shifted; ++b) {
                const bool wanted = at + b * step < cut.units;
                low[b] = wanted ? load16(from + 16 * (at + b * step)) : Words{};
                high[b] = wanted ? load16(from + 16 * (at + b * step) + 16) : Words{};
            }
#pragma unroll
            for (int b = 0; b < shifted; ++b) low[b] = joined(low[b], high[b], shift);
#pragma unroll 1
            for (unsigned i = 0; i < ends.targets; ++i) {
                char* const to = ends.to[i] + cut.units_at;
#pragma unroll
                for (int b = 0; b < shifted; ++b)
                    if (at + b * step < cut.units) store16(to + 16 * (at + b * step), low[b]);
            }
        }
    }

    // 16 bytes, from byte `shift` (below 16) of the first word on.
    static __device__ Words joined(const Words& low, const Words& high, unsigned shift) {
        uint32_t all[8];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            all[i] = low.at[i];
            all[4 + i] = high.at[i];
        }
#pragma unroll
        for (int i = 0; i < 6; ++i) all[i] = shift & 8 ? all[i + 2] : all[i];
#pragma unroll
        for (int i = 0; i < 5; ++i) all[i] = shift & 4 ? all[i + 1] : all[i];
        Words value;
#pragma unroll
        for (int i = 0; i < 4; ++i) value.at[i] = __funnelshift_r(all[i], all[i + 1], 8 * (shift & 3));
        return value;
    }

    static __device__ void rest(const Ends& ends, const Cut& cut, unsigned workers) {
        const uint64_t pieces = cut.pieces();
#pragma unroll 1
        for (uint64_t index = threadIdx.x; index < pieces; index += workers) {
            const auto [at, bytes] = cut.piece(index);
            const uint64_t value = load_up_to_8(ends.from[0] + at, bytes);
#pragma unroll 1
            for (unsigned i = 0; i < ends.targets; ++i) store_up_to_8(ends.to[i] + at, value, bytes);
        }
    }
};

// Ranges that are copied together, of so many in a circle: those from `first` on.
struct Circle {
    unsigned first;
    unsigned count;
    unsigned of;
};
constexpr unsigned together = 3;

// Copies some ranges, each to one target, of whole units at boundaries of 16: the loads of all are under way before the
// first store waits for one. By all workers.
static __device__ __noinline__ void copy_together(const Ends* ends, const uint64_t* bytes, Circle some,
                                                  unsigned workers) {
    constexpr int batch = 4;
    uint64_t longest = 0;
    const char* from[together];
    char* to[together];
    uint64_t units[together];
#pragma unroll
    for (unsigned i = 0; i < together; ++i) {
        const unsigned nth = (some.first + i) % some.of;
        from[i] = ends[nth].from[0];
        to[i] = ends[nth].to[0];
        units[i] = i < some.count ? bytes[nth] / 16 : 0;
        if (units[i] > longest) longest = units[i];
    }
#pragma unroll 1
    for (uint64_t at = threadIdx.x; at < longest; at += batch * workers) {
        Words value[together][batch];
#pragma unroll
        for (unsigned i = 0; i < together; ++i)
#pragma unroll
            for (int b = 0; b < batch; ++b)
                value[i][b] =
                    at + b * workers < units[i] ? load16(from[i] + 16 * (at + b * workers)) : Words{};
#pragma unroll
        for (unsigned i = 0; i < together; ++i)
#pragma unroll
            for (int b = 0; b < batch; ++b)
                if (at + b * workers < units[i]) store16(to[i] + 16 * (at + b * workers), value[i][b]);
    }
}

// `group`: sources that are read at a time; where there may be more, the sums of `batch` units are carried
// along.
template <Element element, int group, int batch, bool carries>
class Combining {
    using Bits = typename Form<element>::Bits;

public:
    __device__ Combining(const CollectiveTask& task, unsigned ranks) : rule_(task, ranks) {}

    // All workers; see Copying::run().
    __device__ void run(const Ends& ends, uint64_t bytes, unsigned workers) const {
        run(ends, bytes, workers, rule_);
    }

private:
    __device__ explicit Combining(const Rule<element>& rule) : rule_(rule) {}
    static __device__ __noinline__ void run(const Ends& ends, uint64_t bytes, unsigned workers,
                                            Rule<element> rule) {
        Combining(rule).run_inside(ends, bytes, workers);
    }

    __device__ void run_inside(const Ends& ends, uint64_t bytes, unsigned workers) const {
        const Cut cut(ends, bytes, sizeof(Bits));
        units(ends, cut, workers);
        rest(ends, cut, workers);
    }

    __device__ void rest(const Ends& ends, const Cut& cut, unsigned workers) const {
        const uint64_t pieces = cut.pieces();
#pragma unroll 1
        for (uint64_t index = threadIdx.x; index < pieces; index += workers) {
            const auto [at, bytes] = cut.piece(index);
            Accumulator<element, 2> sum;
            uint64_t next = load_up_to_8(ends.from[0] + at, bytes);
#pragma unroll 1
            for (unsigned s = 0; s < ends.sources; ++s) {
                const uint32_t words[2] = {static_cast<uint32_t>(next), static_cast<uint32_t>(next >> 32)};
                if (s + 1 < ends.sources) next = load_up_to_8(ends.from[s + 1] + at, bytes);
                sum.take(words, s == 0, rule_, ends.scale[s]);
            }
            uint32_t words[2];
            sum.give(words, rule_);
            const uint64_t value = words[0] | static_cast<uint64_t>(words[1]) << 32;
#pragma unroll 1
            for (unsigned i = 0; i < ends.targets; ++i) store_up_to_8(ends.to[i] + at, value, bytes);
        }
    }

    // As long as every place of a batch has a unit: without a question for each, and, of two sources, with
    // as many loads under way as of four. Returns how many units are done.
    template <int exactly, int deep>
    __device__ uint64_t whole_batches(const Ends& ends, const Cut& cut, unsigned workers) const {
        const unsigned step = workers;
        const uint64_t first = cut.units_at + 16 * threadIdx.x;
        uint64_t at = 0;
#pragma unroll 1
        for (; at + deep * step <= cut.units; at += deep * step) {
            Words value[deep][exactly];
#pragma unroll
            for (int i = 0; i < exactly; ++i) {
                const char* const from = ends.from[i] + first + 16 * at;
#pragma unroll
                for (int b = 0; b < deep; ++b) value[b][i] = load16(from + 16 * (b * step));
            }
#pragma unroll
            for (int b = 0; b < deep; ++b) {
                Accumulator<element, 4> sum;
#pragma unroll
                for (int i = 0; i < exactly; ++i)
                    sum.take(value[b][i].at, i == 0, rule_, rule_.scaled ? ends.scale[i] : 0);
                sum.give(value[b][0].at, rule_);
            }
#pragma unroll 1
            for (unsigned i = 0; i < ends.targets; ++i) {
                char* const to = ends.to[i] + first + 16 * at;
#pragma unroll
                for (int b = 0; b < deep; ++b) store16(to + 16 * (b * step), value[b][0]);
            }
        }
        return at;
    }

    __device__ void units(const Ends& ends, const Cut& cut, unsigned workers) const {
        const unsigned step = workers;
        const unsigned sources = ends.sources;
        uint64_t done = 0;
        if constexpr (!carries) {
            if (sources == 2) done = whole_batches<2, 2 * batch>(ends, cut, workers);
            if (sources == 4 && many_blocks()) done = whole_batches<4, batch / 2>(ends, cut, workers);
            if (sources == 4 && !many_blocks()) done = whole_batches<4, batch>(ends, cut, workers);
        }
#pragma unroll 1
        for (uint64_t at = done + threadIdx.x; at < cut.units; at += batch * step) {
            Accumulator<element, 4> sum[carries ? batch : 1];
            const uint64_t offset = cut.units_at + 16 * at;
            unsigned begin = 0;
#pragma unroll 1
            do {
                Words value[batch][group];
#pragma unroll
                for (int b = 0; b < batch; ++b)
#pragma unroll
                    for (int i = 0; i < group; ++i)
                        value[b][i] = begin + i < sources && at + b * step < cut.units
                                          ? load16(ends.from[begin + i] + offset + 16 * (b * step))
                                          : Words{};  // no register keeps its value from one turn to the next
#pragma unroll
                for (int b = 0; b < batch; ++b) {
#pragma unroll
                    for (int i = 0; i < group; ++i)
                        if (begin + i < sources)
                            sum[carries ? b : 0].take(value[b][i].at, begin + i == 0, rule_,
                                                      rule_.scaled ? ends.scale[begin + i] : 0);
                    if (!carries && at + b * step < cut.units) give(sum[0], ends, offset + 16 * (b * step));
                }
                begin += group;
            } while (carries && begin < sources);
            if constexpr (carries) {
#pragma unroll
                for (int b = 0; b < batch; ++b)
                    if (at + b * step < cut.units) give(sum[b], ends, offset + 16 * (b * step));
            }
        }
    }

    __device__ void give(Accumulator<element, 4>& sum, const Ends& ends, uint64_t at) const {
        Words value;
        sum.give(value.at, rule_);
#pragma unroll 1
        for (unsigned i = 0; i < ends.targets; ++i) store16(ends.to[i] + at, value);
    }

    const Rule<element> rule_;
};

}  // namespace sidestep::backends::cuda
