// The kernels of tasks that combine nothing: slices that are copied, and pairs.
#include "backends/cuda/collective/slices.cuh"

namespace sidestep::backends::cuda {
namespace {

// A block of threads that deals with share `block` of what goes to a peer and of what comes from it.
class Pair {
public:
    __device__ Pair(const CollectiveTask& task, const Station& station, Ends& ends)
        : ground_(task, station), ends_(ends), peer_(station.peers[blockIdx.y]), block_(blockIdx.x) {}

    __device__ void run() {
        if (__syncthreads_or(!ground_.well(ground_.failed(), ground_.rank))) return ground_.report();
        const CollectiveTask& task = ground_.task;
        out_ = block(task.device_send_offsets, task.device_send_counts, task.to);
        in_ = block(task.device_recv_offsets, task.device_recv_counts, task.from);
        if (peer_ == ground_.rank) return copy_own();
        sends_ = out_.bytes != 0 && block_ < backend::pair_blocks(out_.bytes, ground_.ranks);
        receives_ = in_.bytes != 0 && block_ < backend::pair_blocks(in_.bytes, ground_.ranks);
        if (!sends_ && !receives_) return;
        if (meet()) exchange();
        ground_.report();
    }

private:
    __device__ bool device_lists() const { return ground_.task.device_send_counts != nullptr; }

    // What goes to the peer, or comes from it.
    __device__ backend::Block block(const uint64_t* offsets, const uint64_t* counts,
                                    const backend::Block* list) const {
        if (!device_lists()) return list[peer_];
        const uint64_t size = backend::size_of(ground_.task.element);
        return {load_word(offsets + peer_) * size, load_word(counts + peer_) * size};
    }
    __device__ Share share(const backend::Block& whole) const {
        return share_of_bytes(whole.bytes, block_, backend::pair_blocks(whole.bytes, ground_.ranks));
    }

    __device__ void copy_own() {
        if (out_.bytes != in_.bytes) {
            Difference difference{};
            difference.peer_signature = ground_.task.signature;
            difference.bytes = out_.bytes;
            difference.peer_bytes = in_.bytes;
            if (threadIdx.x == 0) ground_.give_up(FaultKind::size_mismatch, ground_.rank, difference);
            return ground_.report();
        }
        const Share part = share_of_bytes(out_.bytes, block_, gridDim.x);
        const char* const from = static_cast<const char*>(ground_.task.send) + out_.offset + part.begin;
        char* const to = static_cast<char*>(ground_.task.recv) + in_.offset + part.begin;
        if (part.begin < part.end && from != to) copy(from, to, part.end - part.begin);
    }

    // The receiver tells where to, the sender learns it. False: leave.
    __device__ bool meet() {
        SeatControl& control = *ground_.station.control;
        sent_ = load_word(&control.sent[block_][peer_]);
        received_ = load_word(&control.received[block_][peer_]);
        own_ = ground_.arena(ground_.rank);
        far_ = ground_.arena(peer_);
        const CollectiveTask& task = ground_.task;
        if (receives_) {
            const uint64_t token = own_token();
            in_direct_ = !unreachable(token);
            if (threadIdx.x == 0) {
                const uint64_t words[4] = {token, in_.bytes, task.signature, 0};
                store_line(far_ + ground_.layout.post(block_, ground_.rank), words,
                           backend::packet_flag(received_ + 1));
            }
        }
        bool well = true;
        if (sends_ && threadIdx.x == 0) well = hear();
        if (__syncthreads_or(!well)) return false;
        to_ = target();
        return true;
    }

    __device__ uint64_t own_token() const {
        const CollectiveTask& task = ground_.task;
        if (!device_lists()) return packed(task.from_tokens[peer_]);
        const uint64_t token = packed(task.recv_token);
        return unreachable(token) ? token : token + in_.offset;
    }

    // Thread 0. False: leave.
    __device__ bool hear() {
        const CollectiveTask& task = ground_.task;
        uint64_t words[4];
        if (!wait_line(ground_, own_ + ground_.layout.post(block_, peer_), words,
                       backend::packet_flag(sent_ + 1), peer_))
            return false;
        Difference difference{};
        difference.peer_signature = static_cast<uint32_t>(words[2]);
        difference.bytes = out_.bytes;
        difference.peer_bytes = words[1];
        const bool alike = words[2] == task.signature;
        if (!alike || words[1] != out_.bytes) {
            ground_.give_up(alike ? FaultKind::size_mismatch : FaultKind::mismatch, peer_, difference);
            return false;
        }
        char* to = nullptr;
        if (!unreachable(words[0])) {
            to = resolved(ground_, peer_, words[0]);
            if (!to) {  // the memory of a rank that is gone
                ground_.give_up(FaultKind::timed_out, peer_);
                return false;
            }
        }
        target() = to;
        return true;
    }
    // Where the peer's block lies, null: out of reach. Of the thread block.
    static __device__ char*& target() {
        __shared__ char* of_block;
        return of_block;
    }

    static __device__ uint64_t pieces(uint64_t bytes, bool direct, uint64_t piece) {
        const uint64_t wanted = direct ? 1 : (bytes + piece - 1) / piece;
        return wanted ? wanted : 1;
    }

    // Piece by piece in turns: the other end does the same, so neither waits for what comes later.
    __device__ void exchange() {
        const uint64_t piece = ground_.layout.stage_bytes();
        const Share out = share(out_);
        const Share in = share(in_);
        const uint64_t outgoing = sends_ ? pieces(out.end - out.begin, to_ != nullptr, piece) : 0;
        const uint64_t incoming = receives_ ? pieces(in.end - in.begin, in_direct_, piece) : 0;
        for (uint64_t k = 0; k < outgoing || k < incoming; ++k) {
            if (k < outgoing && !send(out, k, piece)) return;
            if (k < incoming && !receive(in, k, piece)) return;
        }
        if (threadIdx.x != 0) return;
        SeatControl& control = *ground_.station.control;
        control.sent[block_][peer_] = sent_ + outgoing;
        control.received[block_][peer_] = received_ + incoming;
    }

    __device__ bool send(const Share& out, uint64_t k, uint64_t piece) {
        const char* const from = static_cast<const char*>(ground_.task.send) + out_.offset + out.begin;
        const uint64_t bytes = out.end - out.begin;
        if (to_) {
            copy(from, to_ + out.begin, bytes);
        } else {
            if (k >= 2 && !wait(ground_.layout.credit(block_, peer_), sent_ + k - 1)) return false;
            const uint64_t begin = k * piece;
            const uint64_t length = bytes - begin < piece ? bytes - begin : piece;
            copy(from + begin, far_ + ground_.layout.stage_in(k & 1, block_, ground_.rank), length);
        }
        __syncthreads();
        if (threadIdx.x == 0) store_flag(far_ + ground_.layout.arrived(block_, ground_.rank), sent_ + k + 1);
        return true;
    }

    __device__ bool receive(const Share& in, uint64_t k, uint64_t piece) {
        if (!wait(ground_.layout.arrived(block_, peer_), received_ + k + 1)) return false;
        if (in_direct_) return true;
        const uint64_t begin = k * piece;
        const uint64_t bytes = in.end - in.begin;
        const uint64_t length = bytes - begin < piece ? bytes - begin : piece;
        char* const to = static_cast<char*>(ground_.task.recv) + in_.offset + in.begin + begin;
        copy(own_ + ground_.layout.stage_in(k & 1, block_, peer_), to, length);
        __syncthreads();
        if (threadIdx.x == 0)
            store_flag(far_ + ground_.layout.credit(block_, ground_.rank), received_ + k + 1);
        return true;
    }

    // All threads. False: leave.
    __device__ bool wait(uint64_t offset, uint64_t value) {
        bool well = true;
        if (threadIdx.x == 0) well = wait_flag(ground_, own_ + offset, value, peer_);
        return !__syncthreads_or(!well);
    }

    __device__ void copy(const char* from, char* to, uint64_t bytes) {
        __syncthreads();
        if (threadIdx.x == 0) {
            ends_.from[0] = from;
            ends_.to[0] = to;
            ends_.sources = ends_.targets = 1;
        }
        __syncthreads();
        Copying().run(ends_, bytes, blockDim.x);
    }

    Ground ground_;
    Ends& ends_;
    const unsigned peer_;
    const unsigned block_;
    backend::Block out_;  // in bytes from `send`
    backend::Block in_;   // and from `recv`
    bool sends_ = false;
    bool receives_ = false;
    bool in_direct_ = false;
    uint64_t sent_ = 0;
    uint64_t received_ = 0;
    char* own_ = nullptr;  // arenas
    char* far_ = nullptr;
    char* to_ = nullptr;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(most_data_threads, 1)
    sidestep_slices_copy(const __grid_constant__ CollectiveTask task,
                         const __grid_constant__ Station station) {
    __shared__ Meeting meeting;
    Slices<Copying>(task, station, meeting, Copying(), backend::size_of(task.element)).run();
}

extern "C" __global__ void __launch_bounds__(most_data_threads, 2)
    sidestep_pairs(const __grid_constant__ CollectiveTask task, const __grid_constant__ Station station) {
    __shared__ Ends ends;
    Pair(task, station, ends).run();
}

}  // namespace sidestep::backends::cuda
