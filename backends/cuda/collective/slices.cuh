// Tasks of slices, fetched or pushed. Block b of every rank deals with share b of every slice, or with tiles of its own slice
// as they come. Blocks of one number are all that ever wait for each other: an exchange of entry lines before, a barrier
// after, no barrier of a whole GPU.
#pragma once

#include "backends/cuda/collective/range.cuh"
#include "backends/cuda/collective/tiles.cuh"
#include "backends/cuda/collective/wait.cuh"

namespace sidestep::backends::cuda {

// Of a block, in shared memory.
struct Meeting {
    char* arena[protocol::max_ranks];
    // The buffers of all ranks, where they are used and reachable.
    const char* send[protocol::max_ranks];
    char* recv[protocol::max_ranks];
    uint64_t scale[protocol::max_ranks];
    Ends ends;
    // Of pushed slices: what a turn combines and pushes, filled in while others still work on the one before.
    struct Turn {
        Ends combined;
        uint64_t combined_bytes;
        Ends pushed[protocol::max_ranks];
        uint64_t pushed_bytes[protocol::max_ranks];
        bool odd;  // some of what is pushed is not made of whole units of 16 bytes
    };
    Turn turns[2];
};

// `Work`: Copying or Combining, what is done with a slice.
template <typename Work>
class Slices {
public:
    __device__ Slices(const CollectiveTask& task, const Station& station, Meeting& meeting, const Work& work,
                      unsigned size)
        : kernel_(task, station), meeting_(meeting), work_(work), size_(size) {}

    // All threads of the block.
    __device__ void run() {
        wait_for_kernel_before();
        if (threadIdx.x < kernel_.ranks) meeting_.arena[threadIdx.x] = kernel_.arena(threadIdx.x);
        round_ = load_word(&kernel_.station.control->round[blockIdx.x]);
        if (__syncthreads_or(!kernel_.well(kernel_.failed(), rank()))) return kernel_.report();
        if (enter()) {
            if (!pushed_) work();
            if (pushed_)
                take_turns();
            else
                barrier();
        }
        kernel_.report();
    }

private:
    static __device__ bool is_last_thread() { return threadIdx.x + 1 == blockDim.x; }
    __device__ unsigned rank() const { return kernel_.rank; }
    __device__ unsigned ranks() const { return kernel_.ranks; }
    __device__ const ArenaLayout& layout() const { return kernel_.layout; }

    // Whether a rank other than `owner` itself reads or writes a buffer of `owner`.
    __device__ bool sends_to_others(unsigned owner) const {
        bool used = false;
#pragma unroll 1
        for (unsigned r = 0; r < ranks(); ++r)
            used = used || (r != owner && kernel_.task.slices[r].count &&
                            (kernel_.task.slices[r].sources >> owner & 1));
        return used;
    }
    __device__ bool receives_from_others(unsigned owner) const {
        bool used = false;
#pragma unroll 1
        for (unsigned r = 0; r < ranks(); ++r)
            used = used || (r != owner && kernel_.task.slices[r].count &&
                            (kernel_.task.slices[r].targets >> owner & 1));
        return used;
    }

    __device__ uint64_t own_scale() const {
        const CollectiveTask& task = kernel_.task;
        if (task.combine != Combine::scaled_sum) return 0;
        if (!task.device_scale) return task.scale;
        return load_up_to_8(static_cast<const char*>(task.device_scale), size_);
    }

    // Whether a target of this rank's buffer lies off a boundary of 16: what is combined is written in units
    // of 16.
    __device__ bool lies_misaligned() const {
        const CollectiveTask& task = kernel_.task;
        bool off = false;
#pragma unroll 1
        for (unsigned r = 0; r < ranks(); ++r) {
            const Slice& slice = task.slices[r];
            const char* const to = static_cast<const char*>(task.recv) + slice.target_offset * size_;
            off = off || (slice.count && (slice.targets >> rank() & 1) && misalignment(to));
        }
        return off;
    }

    // What the lines of all say together.
    enum Need : unsigned { push = 1, stage_in = 2 };

    // Everybody says where its buffers lie, and learns where those of the others do. The copy within this
    // rank is done meanwhile. False: leave.
    __device__ bool enter() {
        ++round_;
        const CollectiveTask& task = kernel_.task;
        const unsigned parity = round_ & 1;
        const uint32_t flag = protocol::packet_flag(round_);
        const unsigned peer = threadIdx.x;
        const bool meets = peer < ranks();
        uint64_t words[4] = {packed(task.send_token), packed(task.recv_token), task.signature, 0};
        if (meets) {
            if (lies_misaligned()) words[2] |= protocol::misaligned;
            words[3] = own_scale();
            if (peer != rank())
                store_line(meeting_.arena[peer] + layout().entry(parity, blockIdx.x, rank()), words, flag);
        }
        if (is_last_thread()) kernel_.expect_alone(kernel_.come_to_work());
        copy_within(Inner::local, 0);
        unsigned needs = 0;
        bool well = true;
        if (meets) {
            if (peer != rank())
                well = wait_line<true>(kernel_,
                                       meeting_.arena[rank()] + layout().entry(parity, blockIdx.x, peer),
                                       words, flag, peer);
            if (well) well = meet(peer, words, needs);
        }
        pushed_ = __syncthreads_or(needs & push) || task.shape == protocol::Shape::pushed_slices;
        staged_in_ = __syncthreads_or(needs & stage_in) && pushed_;
        if (staged_in_ && blocks_ > protocol::staging_blocks) blocks_ = protocol::staging_blocks;
        return !__syncthreads_or(!well);
    }

    // What a rank's line says. False: leave.
    __device__ bool meet(unsigned peer, const uint64_t (&words)[4], unsigned& needs) {
        const CollectiveTask& task = kernel_.task;
        const uint32_t peer_signature = static_cast<uint32_t>(words[2]);
        if (sends_to_others(peer) && unreachable(words[0])) needs |= push;
        if (receives_from_others(peer) && unreachable(words[1])) needs |= push | stage_in;
        if (words[2] & protocol::misaligned) needs |= stage_in;
        meeting_.scale[peer] = words[3];
        meeting_.send[peer] = static_cast<const char*>(task.send);
        meeting_.recv[peer] = static_cast<char*>(task.recv);
        if (peer == rank()) return true;
        const Slice& own = task.slices[rank()];
        const bool well = peer_signature == task.signature &&
                          reach(meeting_.send[peer], peer, words[0], own.sources, own.source_offset) &&
                          reach(meeting_.recv[peer], peer, words[1], own.targets, own.target_offset);
        if (!well) kernel_.give_up(FaultKind::mismatch, peer, {peer_signature, 0, 0});
        return well;
    }

    // Where a buffer of the peer begins that this rank's slice is read from, or written to, directly; `wanted` tells of
    // whom it is, and `first` where it lies there, in elements. False: not all of it is mapped here.
    template <typename Address>
    __device__ bool reach(Address& buffer, unsigned peer, uint64_t token, unsigned wanted, uint64_t first) {
        const uint64_t count = kernel_.task.slices[rank()].count;
        if (unreachable(token) || count == 0 || !(wanted >> peer & 1)) return true;
        char* const at = resolved(kernel_, peer, token, first * size_, count * size_);
        if (at) buffer = at - first * size_;
        return at != nullptr;
    }

    // Thread r, or lane r of a warp, for rank r: says that all this block has written is there, and hears it
    // from the blocks of its number. The store waits for what was written before; nobody else does. `hear`:
    // false is leave.
    __device__ void say(unsigned peer, uint64_t round) const {
        if (peer < ranks() && peer != rank())
            store_flag(meeting_.arena[peer] + layout().flags(blockIdx.x, rank()), round);
    }
    __device__ bool hear(unsigned peer, uint64_t round) {
        if (peer >= ranks() || peer == rank()) return true;
        return wait_flag(kernel_, meeting_.arena[rank()] + layout().flags(blockIdx.x, peer), round, peer);
    }

    // By one thread, when others alone are still waited for: what comes after it takes no time then.
    __device__ void count(uint64_t round) const {
        kernel_.station.control->round[blockIdx.x] = round;
        kernel_.leave_work();
    }

    // Everything this block has written, before, is seen by the blocks of its number once they are past.
    __device__ void barrier() {
        ++round_;
        let_next_kernel_come();
        __syncthreads();
        say(threadIdx.x, round_);
        if (is_last_thread()) count(round_);
        hear(threadIdx.x, round_);
    }

    __device__ Share share(uint64_t bytes) const {
        if (blockIdx.x >= blocks_) return {bytes, bytes};
        return share_of_bytes(bytes, blockIdx.x, blocks_);
    }
    // This block's share of a slice, in bytes.
    __device__ Share share_of_slice(unsigned owner) const {
        return share(kernel_.task.slices[owner].count * size_);
    }

    // Blocks of bytes that are copied within this GPU, one behind the other, so that the code is there once:
    // what goes from `send` to `recv`, or what owners of slices have put into the in slots for pieces number
    // `piece`.
    enum class Inner { local, from_slots };
    __device__ void copy_within(Inner what, uint64_t number) {
        const CollectiveTask& task = kernel_.task;
        const unsigned slices = what == Inner::local ? 1 : ranks();
#pragma unroll 1
        for (unsigned r = 0; r < slices; ++r) {
            const Slice& slice = task.slices[r];
            const bool local = what == Inner::local;
            const Share part = local ? share(task.local_bytes) : piece(r, number);
            const char* const from = local
                                         ? static_cast<const char*>(task.send) + task.local_from + part.begin
                                         : meeting_.arena[rank()] + layout().in_slot(blockIdx.x, number, r);
            char* const to = static_cast<char*>(task.recv) + part.begin +
                             (local ? task.local_to : slice.target_offset * size_);
            if (part.begin >= part.end || from == to || (!local && !(slice.targets >> rank() & 1))) continue;
            __syncthreads();
            if (threadIdx.x == 0) fill_one(meeting_.ends, from, to);
            __syncthreads();
            Copying().run(meeting_.ends, part.end - part.begin, blockDim.x);
        }
    }
    static __device__ void fill_one(Ends& ends, const char* from, char* to) {
        ends.from[0] = from;
        ends.to[0] = to;
        ends.sources = ends.targets = 1;
    }

    // What is combined has to lie alike, and the pieces of the others lie at boundaries of 16.
    __device__ bool own_is_staged(const char* own) const {
        return misalignment(own) && (kernel_.task.slices[rank()].sources & ~(1u << rank()));
    }

    // Lists the ends of this rank's slice: where(rank) answers a source, onto(rank) a target. The next rank
    // comes first among the targets, so that not all write to one GPU at a time. Thread r, or lane r of a
    // warp, for rank r.
    template <typename Where, typename Onto>
    __device__ void list_ends(unsigned r, Ends& ends, Where where, Onto onto) const {
        const Slice& slice = kernel_.task.slices[rank()];
        const unsigned all = (1u << ranks()) - 1;
        const unsigned sources = slice.sources & all;
        const unsigned targets = slice.targets & all;
        if (r >= ranks()) return;
        if (sources >> r & 1) {
            const unsigned place = __popc(sources & ((1u << r) - 1));
            ends.from[place] = where(r);
            ends.scale[place] = meeting_.scale[r];
        }
        // Bit p: rank + 1 + p.
        const unsigned turned = (targets >> (rank() + 1) | targets << (ranks() - rank() - 1)) & all;
        const unsigned position = (r + ranks() - rank() - 1) % ranks();
        if (targets >> r & 1) ends.to[__popc(turned & ((1u << position) - 1))] = onto(r);
        if (r == 0) {
            ends.sources = __popc(sources);
            ends.targets = __popc(targets);
        }
    }

    // Fetches.
    __device__ void work() {
        const Slice& slice = kernel_.task.slices[rank()];
        if (!slice.sources) return;
        const uint64_t bytes = slice.count * size_;
        if (Tiles::pay(ranks(), bytes)) {
            Tiles(kernel_, rank(), bytes, gridDim.x).take([&](uint64_t begin, uint64_t some) {
                work_on(slice, begin, some);
            });
            return;
        }
        const Share part = share_of_slice(rank());
        if (part.begin < part.end) work_on(slice, part.begin, part.end - part.begin);
    }
    __device__ void work_on(const Slice& slice, uint64_t begin, uint64_t bytes) {
        const uint64_t from = slice.source_offset * size_ + begin;
        const uint64_t to = slice.target_offset * size_ + begin;
        __syncthreads();
        list_ends(
            threadIdx.x, meeting_.ends, [&](unsigned r) { return meeting_.send[r] + from; },
            [&](unsigned r) { return meeting_.recv[r] + to; });
        __syncthreads();
        work_.run(meeting_.ends, bytes, blockDim.x);
    }

    // Piece `number` of this block's share of a slice.
    __device__ Share piece(unsigned owner, uint64_t number) const {
        const Share part = share_of_slice(owner);
        const uint64_t begin = part.begin + number * layout().push_piece_bytes();
        const uint64_t end = begin + layout().push_piece_bytes();
        return {begin < part.end ? begin : part.end, end < part.end ? end : part.end};
    }

    __device__ uint64_t pieces() const {
        uint64_t longest = 0;
#pragma unroll 1
        for (unsigned r = 0; r < ranks(); ++r) {
            const Share part = share_of_slice(r);
            if (part.end - part.begin > longest) longest = part.end - part.begin;
        }
        return (longest + layout().push_piece_bytes() - 1) / layout().push_piece_bytes();
    }

    // Pushes: turn t pushes piece t and combines piece t - 2. The last warp says and hears, and prepares the
    // next turn, while the others work.
    __device__ void take_turns() {
        const uint64_t all = pieces();
        const uint64_t begun = round_;
        if (all == 0) {
            if (is_last_thread()) count(begun);
            return;
        }
        const unsigned workers = blockDim.x - header_threads;
        const unsigned lane = threadIdx.x - workers;  // of the last warp
        const bool works = threadIdx.x < workers;
#pragma unroll 1
        for (uint64_t turn = 0; turn < all + 3; ++turn) {
            Meeting::Turn& now = meeting_.turns[turn & 1];
            bool well = true;
            if (!works) {
                prepare(lane, now, turn);
                well = turn < 2 || hear(lane, begun + turn - 1);
            }
            if (__syncthreads_or(!well)) return;
            if (works)
                take(now, workers);
            else if (turn != 0)
                say(lane, begun + turn);
            if (staged_in_ && turn >= 4) copy_within(Inner::from_slots, turn - 4);
        }
        round_ = begun + all + 2;
        if (is_last_thread() && !staged_in_) count(round_);
        if (__syncthreads_or(!works && !hear(lane, round_)) || !staged_in_) return;
        copy_within(Inner::from_slots, all - 1);
        if (is_last_thread()) count(round_);
    }

    // The next rank first, so that not all write to one GPU at a time.
    __device__ void take(const Meeting::Turn& turn, unsigned workers) const {
        const unsigned next = rank() + 1;
#pragma unroll 1
        for (unsigned k = 0; k < ranks() && !turn.odd; k += together)
            copy_together(turn.pushed, turn.pushed_bytes, {next + k, min(ranks() - k, together), ranks()},
                          workers);
#pragma unroll 1
        for (unsigned k = 0; k < ranks() && turn.odd; ++k) {
            const unsigned owner = (next + k) % ranks();
            if (turn.pushed_bytes[owner])
                Copying().run(turn.pushed[owner], turn.pushed_bytes[owner], workers);
        }
        if (turn.combined_bytes) work_.run(turn.combined, turn.combined_bytes, workers);
    }

    // By a warp.
    __device__ void prepare(unsigned lane, Meeting::Turn& turn, uint64_t number) const {
        const bool odd = lane < ranks() && prepare_push(turn, number, lane);
        const bool any = __any_sync(~0u, odd);
        if (lane == 0) turn.odd = any;
        const Slice& slice = kernel_.task.slices[rank()];
        const Share part = number < 2 ? Share{0, 0} : piece(rank(), number - 2);
        const bool wanted = part.begin < part.end && slice.sources;
        if (lane == 0) turn.combined_bytes = wanted ? part.end - part.begin : 0;
        if (!wanted) return;
        const uint64_t to = slice.target_offset * size_ + part.begin;
        const char* const own =
            static_cast<const char*>(kernel_.task.send) + slice.source_offset * size_ + part.begin;
        list_ends(
            lane, turn.combined,
            [&](unsigned r) -> const char* {
                if (r == rank() && !own_is_staged(own)) return own;
                return meeting_.arena[rank()] + layout().push_slot(blockIdx.x, number - 2, r);
            },
            [&](unsigned r) -> char* {
                if (!staged_in_) return meeting_.recv[r] + to;
                return meeting_.arena[r] + layout().in_slot(blockIdx.x, number - 2, rank());
            });
    }

    // Whether the piece is not made of whole units.
    __device__ bool prepare_push(Meeting::Turn& turn, uint64_t number, unsigned owner) const {
        const Slice& slice = kernel_.task.slices[owner];
        const Share part = piece(owner, number);
        const char* const from =
            static_cast<const char*>(kernel_.task.send) + slice.source_offset * size_ + part.begin;
        const bool stays = owner == rank() && !own_is_staged(from);
        const bool wanted = part.begin < part.end && (slice.sources >> rank() & 1) && !stays;
        turn.pushed_bytes[owner] = wanted ? part.end - part.begin : 0;
        if (wanted)
            fill_one(turn.pushed[owner], from,
                     meeting_.arena[owner] + layout().push_slot(blockIdx.x, number, rank()));
        return wanted && (misalignment(from) || (part.end - part.begin) % 16);
    }

    KernelContext kernel_;
    Meeting& meeting_;
    const Work work_;
    const unsigned size_;          // of an element
    unsigned blocks_ = gridDim.x;  // that have a share
    bool pushed_ = false;
    bool staged_in_ = false;
    uint64_t round_ = 0;
};

}  // namespace sidestep::backends::cuda
