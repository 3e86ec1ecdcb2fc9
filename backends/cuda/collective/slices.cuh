// Tasks of slices. Block b of every rank deals with share b of every slice, so blocks of one number are all
// that ever wait for each other: an exchange of entry lines before, a barrier after, no barrier of a whole
// GPU.
#pragma once

#include "backends/cuda/collective/range.cuh"
#include "backends/cuda/collective/wait.cuh"

namespace sidestep::backends::cuda {

// Of a block, in shared memory.
struct Meeting {
    char* arena[backend::most_ranks];
    // The buffers of all ranks, where they are used and reachable.
    const char* send[backend::most_ranks];
    char* recv[backend::most_ranks];
    uint64_t scale[backend::most_ranks];
    Ends ends;
};

// `Work`: Copying or Combining, what is done with a slice.
template <typename Work>
class Slices {
public:
    __device__ Slices(const CollectiveTask& task, const Station& station, Meeting& meeting, const Work& work,
                      unsigned size)
        : ground_(task, station), meeting_(meeting), work_(work), size_(size) {}

    // All threads of the block.
    __device__ void run() {
        if (threadIdx.x < ground_.ranks) meeting_.arena[threadIdx.x] = ground_.arena(threadIdx.x);
        round_ = load_word(&ground_.station.control->round[blockIdx.x]);
        if (__syncthreads_or(!ground_.well(ground_.failed(), rank()))) return ground_.report();
        bool staged = false;
        if (!enter(staged)) return ground_.report();
        if (pass_all(staged) && threadIdx.x == 0) ground_.station.control->round[blockIdx.x] = round_;
        ground_.report();
    }

private:
    __device__ unsigned rank() const { return ground_.rank; }
    __device__ unsigned ranks() const { return ground_.ranks; }
    __device__ const ArenaLayout& layout() const { return ground_.layout; }

    // Whether a rank other than `owner` itself reads or writes a buffer of `owner`.
    __device__ bool sends_to_others(unsigned owner) const {
        bool used = false;
        for (unsigned r = 0; r < ranks(); ++r)
            used = used || (r != owner && ground_.task.slices[r].count &&
                            (ground_.task.slices[r].sources >> owner & 1));
        return used;
    }
    __device__ bool receives_from_others(unsigned owner) const {
        bool used = false;
        for (unsigned r = 0; r < ranks(); ++r)
            used = used || (r != owner && ground_.task.slices[r].count &&
                            (ground_.task.slices[r].targets >> owner & 1));
        return used;
    }

    __device__ uint64_t own_scale() const {
        const CollectiveTask& task = ground_.task;
        if (task.combine != Combine::scaled_sum) return 0;
        if (!task.device_scale) return task.scale;
        return load_up_to_8(static_cast<const char*>(task.device_scale), size_);
    }

    // Everybody says where its buffers lie, and learns where those of the others do. The copy within this
    // rank is done meanwhile. False: leave.
    __device__ bool enter(bool& staged) {
        ++round_;
        const CollectiveTask& task = ground_.task;
        const unsigned parity = round_ & 1;
        const uint32_t flag = backend::packet_flag(round_);
        const unsigned peer = threadIdx.x;
        const bool meets = peer < ranks();
        uint64_t words[4] = {packed(task.send_token), packed(task.recv_token), task.signature, 0};
        if (meets) {
            words[3] = own_scale();
            if (peer != rank())
                store_line(meeting_.arena[peer] + layout().entry(parity, blockIdx.x, rank()), words, flag);
        }
        copy_within(Inner::local, 0);
        bool stages = false;
        bool well = true;
        if (meets) {
            if (peer != rank())
                well = wait_line(ground_, meeting_.arena[rank()] + layout().entry(parity, blockIdx.x, peer),
                                 words, flag, peer);
            if (well) well = meet(peer, words, stages);
        }
        staged = __syncthreads_or(stages);
        return !__syncthreads_or(!well);
    }

    // What a rank's line says. False: leave.
    __device__ bool meet(unsigned peer, const uint64_t (&words)[4], bool& stages) {
        const CollectiveTask& task = ground_.task;
        if (words[2] != task.signature) {
            Difference difference{};
            difference.peer_signature = static_cast<uint32_t>(words[2]);
            ground_.give_up(FaultKind::mismatch, peer, difference);
            return false;
        }
        const bool sends = sends_to_others(peer);
        const bool receives = receives_from_others(peer);
        stages = (sends && unreachable(words[0])) || (receives && unreachable(words[1]));
        meeting_.scale[peer] = words[3];
        if (peer == rank()) {
            meeting_.send[peer] = static_cast<const char*>(task.send);
            meeting_.recv[peer] = static_cast<char*>(task.recv);
            return true;
        }
        meeting_.send[peer] = resolved(ground_, peer, words[0]);
        meeting_.recv[peer] = resolved(ground_, peer, words[1]);
        const bool lost = (sends && !unreachable(words[0]) && !meeting_.send[peer]) ||
                          (receives && !unreachable(words[1]) && !meeting_.recv[peer]);
        // The memory of a rank that is gone.
        if (lost) ground_.give_up(FaultKind::timed_out, peer);
        return !lost;
    }

    // Everything this block has written, before, is seen by the blocks of its number once they are past.
    // False: leave.
    __device__ bool barrier() {
        ++round_;
        __syncthreads();
        bool well = true;
        if (threadIdx.x < ranks() && threadIdx.x != rank()) {
            store_flag(meeting_.arena[threadIdx.x] + layout().flags(blockIdx.x, rank()), round_);
            well = wait_flag(ground_, meeting_.arena[rank()] + layout().flags(blockIdx.x, threadIdx.x),
                             round_, threadIdx.x);
        }
        return !__syncthreads_or(!well);
    }

    __device__ Share share(uint64_t bytes) const { return share_of_bytes(bytes, blockIdx.x, gridDim.x); }
    // This block's share of a slice, in bytes.
    __device__ Share share_of_slice(unsigned owner) const {
        return share(ground_.task.slices[owner].count * size_);
    }

    // Blocks of bytes that are copied within this GPU, one behind the other, so that the code is there once:
    // first what goes from `send` to `recv`, then what a pass puts onto the stage, or takes from it.
    enum class Inner { local, onto_stage, from_stage };
    __device__ void copy_within(Inner what, uint64_t pass) {
        const CollectiveTask& task = ground_.task;
        const char* const send = static_cast<const char*>(task.send);
        char* const recv = static_cast<char*>(task.recv);
        const unsigned parity = pass & 1;
        const unsigned slices = what == Inner::local ? 1 : ranks();
#pragma unroll 1
        for (unsigned r = 0; r < slices; ++r) {
            const Slice& slice = task.slices[r];
            const Share part = what == Inner::local ? share(task.local_bytes) : piece(r, pass);
            const char* from = send + part.begin;
            char* to = recv + part.begin;
            bool wanted = part.begin < part.end;
            if (what == Inner::local) {
                from += task.local_from;
                to += task.local_to;
            } else if (what == Inner::onto_stage) {
                wanted = wanted && (slice.sources >> rank() & 1);
                from += slice.source_offset * size_;
                to = meeting_.arena[rank()] + layout().stage_out(parity, blockIdx.x, r);
            } else {
                wanted = wanted && (slice.targets >> rank() & 1);
                from = meeting_.arena[rank()] + layout().stage_in(parity, blockIdx.x, r);
                to += slice.target_offset * size_;
            }
            if (!wanted || from == to) continue;
            __syncthreads();
            if (threadIdx.x == 0) {
                meeting_.ends.from[0] = from;
                meeting_.ends.to[0] = to;
                meeting_.ends.sources = meeting_.ends.targets = 1;
            }
            __syncthreads();
            Copying().run(meeting_.ends, part.end - part.begin);
        }
    }

    // Lists the ends of this rank's slice: where(rank) answers a source, onto(rank) a target. The next rank
    // comes first among the targets, so that not all write to one GPU at a time.
    template <typename Where, typename Onto>
    __device__ void list_ends(Where where, Onto onto) {
        const Slice& slice = ground_.task.slices[rank()];
        const unsigned all = (1u << ranks()) - 1;
        const unsigned sources = slice.sources & all;
        const unsigned targets = slice.targets & all;
        const unsigned r = threadIdx.x;
        __syncthreads();
        if (r < ranks()) {
            if (sources >> r & 1) {
                const unsigned place = __popc(sources & ((1u << r) - 1));
                meeting_.ends.from[place] = where(r);
                meeting_.ends.scale[place] = meeting_.scale[r];
            }
            // Bit p: rank + 1 + p.
            const unsigned turned = (targets >> (rank() + 1) | targets << (ranks() - rank() - 1)) & all;
            const unsigned position = (r + ranks() - rank() - 1) % ranks();
            if (targets >> r & 1) meeting_.ends.to[__popc(turned & ((1u << position) - 1))] = onto(r);
            if (r == 0) {
                meeting_.ends.sources = __popc(sources);
                meeting_.ends.targets = __popc(targets);
            }
        }
        __syncthreads();
    }

    // Piece `pass` of this block's share of a slice.
    __device__ Share piece(unsigned owner, uint64_t pass) const {
        const Share part = share_of_slice(owner);
        const uint64_t begin = part.begin + pass * layout().stage_bytes();
        const uint64_t end = begin + layout().stage_bytes();
        return {begin < part.end ? begin : part.end, end < part.end ? end : part.end};
    }

    __device__ uint64_t staged_passes() const {
        uint64_t longest = 0;
#pragma unroll 1
        for (unsigned r = 0; r < ranks(); ++r) {
            const Share part = share_of_slice(r);
            if (part.end - part.begin > longest) longest = part.end - part.begin;
        }
        return (longest + layout().stage_bytes() - 1) / layout().stage_bytes();
    }

    // Directly that is a single pass over all of this block's share. False: leave.
    __device__ bool pass_all(bool staged) {
        const uint64_t passes = staged ? staged_passes() : 1;
#pragma unroll 1
        for (uint64_t pass = 0; pass < passes; ++pass) {
#pragma unroll 1
            for (unsigned step = staged ? 0 : 1; step < 2; ++step) {
                if (step == 0)
                    copy_within(Inner::onto_stage, pass);
                else
                    work(staged, pass);
                if (!barrier()) return false;
            }
            if (staged) copy_within(Inner::from_stage, pass);
        }
        return true;
    }

    __device__ void work(bool staged, uint64_t pass) {
        const Slice& slice = ground_.task.slices[rank()];
        const Share part = staged ? piece(rank(), pass) : share_of_slice(rank());
        if (part.begin >= part.end || !slice.sources) return;
        const uint64_t from = staged ? layout().stage_out(pass & 1, blockIdx.x, rank())
                                     : slice.source_offset * size_ + part.begin;
        const uint64_t to = staged ? layout().stage_in(pass & 1, blockIdx.x, rank())
                                   : slice.target_offset * size_ + part.begin;
        list_ends([&](unsigned r) { return (staged ? meeting_.arena[r] : meeting_.send[r]) + from; },
                  [&](unsigned r) { return (staged ? meeting_.arena[r] : meeting_.recv[r]) + to; });
        work_.run(meeting_.ends, part.end - part.begin);
    }

    Ground ground_;
    Meeting& meeting_;
    const Work work_;
    const unsigned size_;  // of an element
    uint64_t round_ = 0;
};

}  // namespace sidestep::backends::cuda
