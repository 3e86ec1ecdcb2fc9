// What tasks of packets and tasks of lines have in common: the epoch, the header by which ranks say what they
// run, scales, and the wiping of old flags.
#pragma once

#include "backends/cuda/collective/elements.cuh"
#include "backends/cuda/collective/wait.cuh"

namespace sidestep::backends::cuda {

constexpr uint64_t wipe_period = 1u << 30;  // epochs

// `group`: ranks that are looked after at a time.
template <Element element, int group>
class Exchange {
protected:
    __device__ Exchange(const CollectiveTask& task, const Station& station) : kernel_(task, station) {}

    static __device__ bool is_last_thread() { return threadIdx.x + 1 == blockDim.x; }
    static __device__ bool is_data_thread() { return threadIdx.x < blockDim.x - header_threads; }
    // Of a task whose data threads each deal with units of their own: the first one, and how far the next one
    // is.
    static __device__ uint64_t first_unit() {
        return uint64_t{blockIdx.x} * (blockDim.x - header_threads) + threadIdx.x;
    }
    static __device__ uint64_t unit_stride() { return uint64_t{gridDim.x} * (blockDim.x - header_threads); }

    // First of all, by all threads: begins to load the epoch and where the arenas lie.
    __device__ Words look() {
        wait_for_kernel_before();
        let_next_kernel_come();
        const Words head = load_packet(reinterpret_cast<const char*>(kernel_.station.control));
#pragma unroll
        for (int i = 0; i < group; ++i)
            peers_[i] = 1u + i < kernel_.ranks ? kernel_.arena(rank_at(1 + i)) : nullptr;
        own_ = kernel_.arena(kernel_.rank);
        return head;
    }
    // All threads, with what look() gave; false: leave.
    __device__ bool enter(const Words& head) {
        const bool well = __all_sync(~0u, kernel_.well(head.at[2], kernel_.rank));
        lamport_ = next_lamport_ = head.at[3];
        epoch_ = head.at[0] | static_cast<uint64_t>(head.at[1]) << 32;
        flag_ = protocol::packet_flag(epoch_);
        parity_ = epoch_ & 1;
        if (is_data_thread() || !well) say_epoch_is_read();
        if (!well) kernel_.report();
        return well;
    }
    __device__ void leave() {
        kernel_.report();
        if (wipes()) wipe();
    }

    // The last warp of each block opens the next epoch once all blocks know this one: while packets are on
    // their way, since it would add half a microsecond to the end of the task. That of the first block also
    // says what runs here, and hears what runs elsewhere. Until then the task counts as at work: up to its very end would
    // make it 0.1 us longer, and when all ranks have come it ends by itself.
    __device__ void headers() {
        const unsigned lane = threadIdx.x - (blockDim.x - header_threads);
        const CollectiveTask& task = kernel_.task;
        const bool scaled = task.combine == Combine::scaled_sum;
        const bool speaks = blockIdx.x == 0 && lane < kernel_.ranks && lane != kernel_.rank;
        const bool counts = blockIdx.x == 0 && is_last_thread();
        const uint64_t at_work = counts ? kernel_.come_to_work() : 0;
        if (speaks) {
            char* const to = kernel_.arena(lane) + kernel_.layout.header(0, parity_, kernel_.rank);
            store_packet(to, task.signature, 0, flag_);
            if (scaled) store_packet(to + 16, own_scale(), flag_);
        }
        open_next_epoch();
        if (scaled) __syncthreads();
        if (speaks) hear_header(lane);
        __syncwarp();
        if (!counts) return;
        kernel_.expect_alone(at_work);
        kernel_.leave_work_as_the_only_block();
    }

    // What another rank runs. By one thread.
    __device__ void hear_header(unsigned lane) {
        const CollectiveTask& task = kernel_.task;
        const char* const from = own_ + kernel_.layout.header(0, parity_, lane);
        Words packet;
        if (!wait_packet(kernel_, from, packet, flag_, lane)) return;
        if (packet.at[0] == task.signature) return;
        Difference difference{};
        difference.peer_signature = packet.at[0];
        kernel_.give_up(FaultKind::mismatch, lane, difference);
    }

    __device__ unsigned rank_at(unsigned k) const {
        const unsigned rank = kernel_.rank + k;
        return rank < kernel_.ranks ? rank : rank - kernel_.ranks;
    }

    // act(i, rank, arena) for every other rank, beginning with the next one.
    template <typename Act>
    __device__ void each_peer(Act act) const {
#pragma unroll
        for (int i = 0; i < group; ++i)
            if (1u + i < kernel_.ranks) act(i, rank_at(1 + i), peers_[i]);
#pragma unroll 1
        for (unsigned k = 1 + group; k < kernel_.ranks; ++k)
            act(group, rank_at(k), kernel_.arena(rank_at(k)));
    }

    // Loads a unit of each of the ranks from `begin` on for whom `wanted` has bits until come(unit) is true
    // of all of them. `lanes` is where the first one's lies, and the next one's is `lane` bytes on. False:
    // leave.
    template <typename Come>
    __device__ bool poll(Words (&units)[group], unsigned wanted, unsigned begin, const char* lanes,
                         uint64_t lane, Come come) {
        Wait wait;
#pragma unroll 1
        for (;;) {
#pragma unroll
            for (int i = 0; i < group; ++i)
                if (wanted >> i & 1) units[i] = load_packet(lanes + i * lane);
            unsigned missing = ~0u;
#pragma unroll
            for (int i = 0; i < group; ++i)
                if ((wanted >> i & 1) && !come(units[i])) missing = i;
            if (missing == ~0u) return true;
            if (!wait.go_on(kernel_, begin + missing)) return false;
        }
    }

    // Bit i: rank begin + i is another one, of which there are so many bytes: bytes(rank) is not 0.
    template <typename Bytes>
    __device__ unsigned others_with(Bytes bytes, unsigned begin) const {
        unsigned bits = 0;
#pragma unroll
        for (int i = 0; i < group; ++i)
            if (begin + i < kernel_.ranks && begin + i != kernel_.rank && bytes(begin + i)) bits |= 1u << i;
        return bits;
    }

    __device__ uint64_t own_scale() const {
        const CollectiveTask& task = kernel_.task;
        if (!task.device_scale) return task.scale;
        return load_up_to_8(static_cast<const char*>(task.device_scale),
                            sizeof(typename Form<element>::Bits));
    }

    // Every rank's factor, which comes behind its header.
    __device__ bool learn_scales() {
        if (threadIdx.x == kernel_.rank) scales()[threadIdx.x] = own_scale();
        if (threadIdx.x < kernel_.ranks && threadIdx.x != kernel_.rank) {
            const char* const from = own_ + kernel_.layout.header(0, parity_, threadIdx.x) + 16;
            Words packet;
            if (wait_packet(kernel_, from, packet, flag_, threadIdx.x))
                scales()[threadIdx.x] = payload_of(packet);
        }
        __syncthreads();
        return kernel_.failed() == 0;
    }
    static __device__ uint64_t* scales() {
        __shared__ uint64_t of_ranks[protocol::max_ranks];
        return of_ranks;
    }

    KernelContext kernel_;
    uint64_t epoch_ = 0;
    uint32_t flag_ = 0;
    unsigned parity_ = 0;
    uint32_t lamport_ = 0;       // SeatControl::lamport, as it was found,
    uint32_t next_lamport_ = 0;  // and as the next task finds it; to be set before headers()
    char* own_ = nullptr;
    char* peers_[group];

private:
    // Of a block's threads all but the last warp say it, which waits for them. By warps, whose threads all
    // come here together: what is counted is warps.
    static __device__ void say_epoch_is_read() {
        asm volatile("barrier.arrive 1, %0;" ::"r"(blockDim.x) : "memory");
    }
    // The last block whose threads all have read the epoch opens the next one.
    __device__ void open_next_epoch() const {
        asm volatile("barrier.sync 1, %0;" ::"r"(blockDim.x) : "memory");
        SeatControl* const control = kernel_.station.control;
        if (!is_last_thread()) return;
        if (gridDim.x != 1 && atomicAdd(&control->done, 1u) != gridDim.x - 1) return;
        control->done = 0;
        if (next_lamport_ != lamport_) control->lamport = next_lamport_;
        control->epoch = epoch_ + 1;
    }

    // Flags wrap around after 2^32 epochs: every 2^30 the last block to end wipes the parity that was read.
    // Nobody writes there before this rank's next task.
    __device__ bool wipes() const {
        return epoch_ >= wipe_period && epoch_ % wipe_period <= 1;
    }
    __device__ void wipe() const {
        SeatControl* const control = kernel_.station.control;
        __shared__ bool last;
        __syncthreads();
        if (threadIdx.x == 0) last = atomicAdd(&control->ended, 1u) == gridDim.x - 1;
        __syncthreads();
        if (!last) return;
        if (threadIdx.x == 0) control->ended = 0;
        for (unsigned phase = 0; phase < 2; ++phase) {
            char* const lanes = own_ + kernel_.layout.header(phase, parity_, 0);
            const uint64_t bytes = kernel_.ranks * kernel_.layout.packet_lane();
#pragma unroll 1
            for (uint64_t at = 16 * threadIdx.x; at < bytes; at += 16 * blockDim.x)
                store16(lanes + at, Words{});
        }
    }
};

}  // namespace sidestep::backends::cuda
