// Tasks of a ring. Thread block (b, 0) of every rank passes on what goes up, or around, and block (b, 1) what
// comes down; blocks of one number wait for those of the two neighbours alone, except for the exchange of entry
// lines.
#pragma once

#include "backends/cuda/collective/elements.cuh"
#include "backends/cuda/collective/wait.cuh"
#include "protocol/ring_path.hpp"

namespace sidestep::backends::cuda {

constexpr unsigned ring_unit = 8;  // bytes of elements that a thread deals with at a time

// What a message consists of: `own` of this rank and what has come, to the next slot and to the receive
// buffer. Null is what there is not.
struct Message {
    const char* own;
    const char* in;
    char* out;
    char* recv;
    uint64_t bytes;  // of elements
};

// Copies. All threads of the block.
struct MovingOn {
    static constexpr bool combines = false;
    __device__ void run(const Message& message) const {
        const char* const from = message.in ? message.in : message.own;
#pragma unroll 1
        for (uint64_t at = ring_unit * threadIdx.x; at < message.bytes; at += ring_unit * blockDim.x) {
            const uint64_t left = message.bytes - at;
            const unsigned bytes = left < ring_unit ? static_cast<unsigned>(left) : ring_unit;
            const uint64_t value = load_up_to_8(from + at, bytes);
            if (message.out) store_up_to_8(message.out + at, value, bytes);
            if (message.recv && message.recv != from) store_up_to_8(message.recv + at, value, bytes);
        }
    }
};

// Adds this rank's elements to the sums that have come. The last rank ends them.
template <Element element>
class AddingUp {
    using Sum = Accumulator<element, ring_unit / 4>;
    using Wide = typename Form<element>::Wide;
    static constexpr unsigned words = sizeof(Sum) / 8;
    static_assert(sizeof(Sum) % 8 == 0 && sizeof(Sum) == Sum::count * sizeof(Wide));

public:
    static constexpr bool combines = true;
    static constexpr uint64_t wide_unit = sizeof(Sum);
    __device__ AddingUp(const CollectiveTask& task, unsigned rank, unsigned ranks, uint64_t scale)
        : rule_(task, ranks), last_(rank + 1 == ranks), scale_(scale) {}

    __device__ void run(const Message& message) const {
#pragma unroll 1
        for (uint64_t i = threadIdx.x; i * ring_unit < message.bytes; i += blockDim.x) {
            const uint64_t at = i * ring_unit;
            const uint64_t left = message.bytes - at;
            const unsigned bytes = left < ring_unit ? static_cast<unsigned>(left) : ring_unit;
            const uint64_t own = load_up_to_8(message.own + at, bytes);
            const uint32_t parts[2] = {static_cast<uint32_t>(own), static_cast<uint32_t>(own >> 32)};
            Sum sum;
            if (message.in) load(sum, message.in + i * wide_unit);
            sum.take(parts, !message.in, rule_, scale_);
            if (!last_) {
                store(sum, message.out + i * wide_unit);
                continue;
            }
            uint32_t ended[2];
            sum.give(ended, rule_);
            const uint64_t value = ended[0] | static_cast<uint64_t>(ended[1]) << 32;
            if (message.out) store_up_to_8(message.out + at, value, bytes);
            if (message.recv) store_up_to_8(message.recv + at, value, bytes);
        }
    }

private:
    // Slots hold whole units: what lies behind the last element is never looked at. Other ranks wrote them,
    // so not through caches that may be stale.
    static __device__ void load(Sum& sum, const char* from) {
        uint64_t raw[words];
#pragma unroll
        for (unsigned w = 0; w < words; ++w) raw[w] = load_word(from + 8 * w);
        memcpy(sum.value, raw, sizeof(Sum));
    }
    static __device__ void store(const Sum& sum, char* to) {
        uint64_t raw[words];
        memcpy(raw, sum.value, sizeof(Sum));
#pragma unroll
        for (unsigned w = 0; w < words; ++w) store_unit<uint64_t>(to + 8 * w, raw[w]);
    }

    const Rule<element> rule_;
    const bool last_;
    const uint64_t scale_;
};

// `Work`: MovingOn or AddingUp.
template <typename Work>
class Ring {
public:
    __device__ Ring(const CollectiveTask& task, const Station& station, const Work& work, unsigned size)
        : kernel_(task, station),
          work_(work),
          size_(size),
          piece_(protocol::ring_piece_elements(task, station.ranks)),
          down_(blockIdx.y == 1),
          last_(station.rank + 1 == station.ranks) {}

    // All threads of the block.
    __device__ void run() {
        SeatControl* const control = kernel_.station.control;
        if (__syncthreads_or(!kernel_.well(kernel_.failed(), rank()))) return kernel_.report();
        const unsigned before = (rank() + ranks() - 1) % ranks();
        const unsigned behind = (rank() + 1) % ranks();
        // The last rank sends down what it has ended.
        const bool to_below = down_ || (Work::combines && last_);
        from_ = down_ ? behind : before;
        to_ = to_below ? before : behind;
        own_ = kernel_.arena(rank());
        from_arena_ = kernel_.arena(from_);
        to_arena_ = kernel_.arena(to_);
        first_received_ = received_ = load_word(&control->received[blockIdx.x][from_]);
        first_sent_ = sent_ = load_word(&control->sent[blockIdx.x][to_]);
        const bool counts = threadIdx.x + 1 == blockDim.x;
        if (counts) kernel_.expect_alone(kernel_.come_to_work());
        if (pass_all() && threadIdx.x == 0) {
            if (received_ != first_received_) control->received[blockIdx.x][from_] = received_;
            if (sent_ != first_sent_) control->sent[blockIdx.x][to_] = sent_;
            if (!down_) control->round[blockIdx.x] = round_;
        }
        kernel_.report();
        __syncthreads();
        if (counts) kernel_.leave_work();
    }

private:
    __device__ unsigned rank() const { return kernel_.rank; }
    __device__ unsigned ranks() const { return kernel_.ranks; }
    __device__ const ArenaLayout& layout() const { return kernel_.layout; }
    __device__ const Slice& slice(unsigned r) const { return kernel_.task.slices[r]; }
    __device__ bool wants(const Slice& of) const { return of.targets >> rank() & 1; }

    // False: leave.
    __device__ bool pass_all() {
        if (down_) return pass_down();
        if (!enter()) return false;
        return Work::combines ? pass_up() : pass_around();
    }

    // All ranks have ended the task before, and run this one: their slots are free. False: leave.
    __device__ bool enter() {
        const CollectiveTask& task = kernel_.task;
        round_ = load_word(&kernel_.station.control->round[blockIdx.x]) + 1;
        const unsigned parity = round_ & 1;
        const uint32_t flag = protocol::packet_flag(round_);
        const unsigned peer = threadIdx.x;
        const bool meets = peer < ranks() && peer != rank();
        uint64_t words[4] = {0, 0, task.signature, 0};
        if (meets) store_line(kernel_.arena(peer) + layout().entry(parity, blockIdx.x, rank()), words, flag);
        copy_locally();
        bool well = true;
        if (meets) {
            well = wait_line(kernel_, own_ + layout().entry(parity, blockIdx.x, peer), words, flag, peer);
            if (well && words[2] != task.signature) {
                Difference difference{};
                difference.peer_signature = static_cast<uint32_t>(words[2]);
                kernel_.give_up(FaultKind::mismatch, peer, difference);
                well = false;
            }
        }
        return !__syncthreads_or(!well);
    }

    __device__ void copy_locally() const {
        const CollectiveTask& task = kernel_.task;
        const Share part = share_of_bytes(task.local_bytes, blockIdx.x, gridDim.x);
        const char* const from = static_cast<const char*>(task.send) + task.local_from + part.begin;
        char* const to = static_cast<char*>(task.recv) + task.local_to + part.begin;
        if (part.begin < part.end && from != to)
            MovingOn().run({from, nullptr, to, nullptr, part.end - part.begin});
    }

    // This block's share of a slice, in elements.
    __device__ Share share(unsigned r) const {
        const Share bytes = share_of_bytes(slice(r).count * size_, blockIdx.x, gridDim.x);
        return {bytes.begin / size_, bytes.end / size_};
    }

    __device__ bool pass_up() {
#pragma unroll 1
        for (unsigned r = 0; r < ranks(); ++r) {
            const Share part = share(r);
            const bool gives = !last_ || protocol::ring_descends(slice(r), rank());
#pragma unroll 1
            for (uint64_t at = part.begin; at < part.end; at += piece_)
                if (!pass(r, at, part.end, rank() > 0, gives, last_ && wants(slice(r)))) return false;
        }
        return true;
    }

    // The last rank has nothing above it.
    __device__ bool pass_down() {
        if (last_) return true;
#pragma unroll 1
        for (unsigned r = 0; r < ranks(); ++r) {
            if (!protocol::ring_descends(slice(r), rank() + 1)) continue;
            const Share part = share(r);
            const bool gives = protocol::ring_descends(slice(r), rank());
#pragma unroll 1
            for (uint64_t at = part.begin; at < part.end; at += piece_)
                if (!pass(r, at, part.end, true, gives, wants(slice(r)))) return false;
        }
        return true;
    }

    __device__ bool pass_around() {
        uint64_t longest = 0;
#pragma unroll 1
        for (unsigned r = 0; r < ranks(); ++r) {
            const Share part = share(r);
            if (part.end - part.begin > longest) longest = part.end - part.begin;
        }
        const unsigned before = (rank() + ranks() - 1) % ranks();
#pragma unroll 1
        for (uint64_t done = 0; done < longest; done += piece_)
#pragma unroll 1
            for (unsigned distance = 0; distance < ranks(); ++distance)
#pragma unroll 1
                for (unsigned r = 0; r < ranks(); ++r) {
                    const Share part = share(r);
                    if (part.begin + done >= part.end) continue;
                    if (protocol::ring_distance(slice(r), rank(), ranks()) != distance) continue;
                    if (distance > 0 && !protocol::ring_goes_on(slice(r), before, ranks())) continue;
                    const bool gives = protocol::ring_goes_on(slice(r), rank(), ranks());
                    if (!pass(r, part.begin + done, part.end, distance > 0, gives, wants(slice(r))))
                        return false;
                }
        return true;
    }

    // One message, from element `at` of the slice on. False: leave.
    __device__ bool pass(unsigned r, uint64_t at, uint64_t end, bool takes, bool gives, bool keeps) {
        bool well = true;
        if (threadIdx.x == 0) {
            if (takes)
                well = wait_flag(kernel_, own_ + layout().arrived(blockIdx.x, from_), received_ + 1, from_);
            if (well && gives && sent_ - first_sent_ >= protocol::ring_slots)
                well = wait_flag(kernel_, own_ + layout().credit(blockIdx.x, to_),
                                 sent_ + 1 - protocol::ring_slots, to_);
        }
        if (__syncthreads_or(!well)) return false;
        const CollectiveTask& task = kernel_.task;
        const bool to_below = down_ || (Work::combines && last_);
        const uint64_t count = end - at < piece_ ? end - at : piece_;
        Message message;
        message.own = static_cast<const char*>(task.send) + (slice(r).source_offset + at) * size_;
        message.in =
            takes ? own_ + layout().ring_slot(down_, blockIdx.x, received_ - first_received_) : nullptr;
        message.out =
            gives ? to_arena_ + layout().ring_slot(to_below, blockIdx.x, sent_ - first_sent_) : nullptr;
        message.recv =
            keeps ? static_cast<char*>(task.recv) + (slice(r).target_offset + at) * size_ : nullptr;
        message.bytes = count * size_;
        if (down_)
            MovingOn().run(message);
        else
            work_.run(message);
        sent_ += gives;
        received_ += takes;
        // What all threads have written and read lies before what the first one says now.
        __syncthreads();
        if (threadIdx.x == 0) {
            if (gives) store_flag(to_arena_ + layout().arrived(blockIdx.x, rank()), sent_);
            if (takes) store_flag(from_arena_ + layout().credit(blockIdx.x, rank()), received_);
        }
        return true;
    }

    KernelContext kernel_;
    const Work work_;
    const unsigned size_;   // of an element
    const uint64_t piece_;  // elements of a message
    const bool down_;
    const bool last_;
    unsigned from_ = 0;
    unsigned to_ = 0;
    char* own_ = nullptr;
    char* from_arena_ = nullptr;
    char* to_arena_ = nullptr;
    uint64_t first_received_ = 0;
    uint64_t received_ = 0;
    uint64_t first_sent_ = 0;
    uint64_t sent_ = 0;
    uint64_t round_ = 0;
};

}  // namespace sidestep::backends::cuda
