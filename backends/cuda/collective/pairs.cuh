// Tasks of pairs. A block of threads deals with share `blockIdx.x` of what goes to a peer, `blockIdx.y`, and
// of what comes from it; blocks of bytes that are eager travel as packets, one hop after the task began, and
// all others are pushed to where the receiver's line says, one hop later.
#pragma once

#include "backends/cuda/collective/range.cuh"
#include "backends/cuda/collective/tiles.cuh"
#include "backends/cuda/collective/wait.cuh"
#include "protocol/pair_blocks.hpp"

namespace sidestep::backends::cuda {

// `eager_alone`: all blocks for others are eager. A kernel of its own, since it is short: the last warp tells
// and hears what both ends have to agree on while the others carry the bytes. Elsewhere all threads carry
// them, and thread 0 tells and hears.
template <bool eager_alone>
class Pair {
public:
    __device__ Pair(const CollectiveTask& task, const Station& station, Ends& ends)
        : kernel_(task, station), ends_(ends), peer_(station.peers[blockIdx.y]), block_(blockIdx.x) {}

    __device__ void run() {
        wait_for_kernel_before();
        let_next_kernel_come();
        look();
        if (__syncthreads_or(!kernel_.well(kernel_.failed(), kernel_.rank))) return kernel_.report();
        if (peer_ == kernel_.rank) return copy_own();
        if (!sends_ && !receives_) return;
        bool well = false;
        if constexpr (eager_alone)
            well = exchange_eager();
        else
            well = exchange();
        if (well) end();
        kernel_.report();
    }

private:
    static __device__ bool counts() { return threadIdx.x + 1 == blockDim.x; }
    __device__ bool device_lists() const {
        return !eager_alone && kernel_.task.device_send_counts != nullptr;
    }

    // What goes to the peer, or comes from it.
    __device__ protocol::Block block(const uint64_t* offsets, const uint64_t* counts,
                                     const protocol::Block* list) const {
        if (!device_lists()) return list[peer_];
        const uint64_t size = protocol::size_of(kernel_.task.element);
        return {load_word(offsets + peer_) * size, load_word(counts + peer_) * size};
    }
    __device__ unsigned blocks_of(const protocol::Block& whole) const {
        const CollectiveTask& task = kernel_.task;
        return protocol::pair_blocks(whole.bytes, kernel_.ranks, task.eager_max, task.pair_blocks_max);
    }
    // This block's share, of which it takes no part where there is none. Divisions take as long as a load.
    __device__ Share share(const protocol::Block& whole) const {
        const unsigned blocks = blocks_of(whole);
        if (block_ >= blocks) return {0, 0};
        return blocks == 1 ? Share{0, whole.bytes} : share_of_bytes(whole.bytes, block_, blocks);
    }

    // Everything that is needed first is asked for at once, and what can be worked out is while it comes.
    __device__ void look() {
        const CollectiveTask& task = kernel_.task;
        const SeatControl& control = *kernel_.station.control;
        sent_ = load_word(&control.sent[block_][peer_]);
        received_ = load_word(&control.received[block_][peer_]);
        own_ = kernel_.arena(kernel_.rank);
        far_ = kernel_.arena(peer_);
        out_ = block(task.device_send_offsets, task.device_send_counts, task.to);
        in_ = block(task.device_recv_offsets, task.device_recv_counts, task.from);
        out_share_ = share(out_);
        in_share_ = share(in_);
        sends_ = out_share_.begin < out_share_.end;
        receives_ = in_share_.begin < in_share_.end;
        eager_out_ = sends_ && (eager_alone || protocol::is_eager(out_.bytes, kernel_.ranks, task.eager_max));
        eager_in_ =
            receives_ && (eager_alone || protocol::is_eager(in_.bytes, kernel_.ranks, task.eager_max));
        if (eager_alone && sends_ && peer_ != kernel_.rank && threadIdx.x < carriers())
            first_ = load_unit(threadIdx.x);
    }

    __device__ void copy_own() {
        if (out_.bytes != in_.bytes) {
            if (threadIdx.x == 0) give_up_of_size(kernel_.rank, in_.bytes);
            return kernel_.report();
        }
        const Share part = share_of_bytes(out_.bytes, block_, gridDim.x);
        const char* const from = static_cast<const char*>(kernel_.task.send) + out_.offset + part.begin;
        char* const to = static_cast<char*>(kernel_.task.recv) + in_.offset + part.begin;
        if (part.begin < part.end && from != to) copy(from, to, part.end - part.begin);
    }

    // Of what is sent to `peer`, who expects `bytes`.
    __device__ void give_up_of_size(unsigned peer, uint64_t bytes) {
        Difference difference{};
        difference.peer_signature = kernel_.task.signature;
        difference.bytes = out_.bytes;
        difference.peer_bytes = bytes;
        kernel_.give_up(FaultKind::size_mismatch, peer, difference);
    }

    // The receiver tells where to, and how much.
    __device__ void post() const {
        const uint64_t words[4] = {own_token(), in_.bytes, kernel_.task.signature, 0};
        store_line(far_ + kernel_.layout.post(received_ + 1, block_, kernel_.rank), words,
                   protocol::packet_flag(received_ + 1));
    }
    __device__ uint64_t own_token() const {
        const CollectiveTask& task = kernel_.task;
        if (!device_lists()) return packed(task.from_tokens[peer_]);
        const uint64_t token = packed(task.recv_token);
        return unreachable(token) ? token : token + in_.offset;
    }

    // The sender learns it; `words` gets the line. One thread. False: leave.
    __device__ bool hear(uint64_t (&words)[4]) {
        if (!wait_line(kernel_, own_ + kernel_.layout.post(sent_ + 1, block_, peer_), words,
                       protocol::packet_flag(sent_ + 1), peer_))
            return false;
        if (!runs_the_same(words[2])) return false;
        if (words[1] != out_.bytes) give_up_of_size(peer_, words[1]);
        return words[1] == out_.bytes;
    }
    __device__ bool runs_the_same(uint64_t peer_signature) {
        if (peer_signature == kernel_.task.signature) return true;
        Difference difference{};
        difference.peer_signature = static_cast<uint32_t>(peer_signature);
        kernel_.give_up(FaultKind::mismatch, peer_, difference);
        return false;
    }

    // Thread 0 hears where the peer's block lies, null: out of reach. All threads; false: leave.
    __device__ bool learn_target() {
        __shared__ char* of_block;
        uint64_t words[4];
        bool well = true;
        if (threadIdx.x == 0 && hear(words)) {
            of_block = unreachable(words[0]) ? nullptr : resolved(kernel_, peer_, words[0], 0, out_.bytes);
            well = unreachable(words[0]) || of_block;
            if (!well) kernel_.give_up(FaultKind::mismatch, peer_, {kernel_.task.signature, 0, 0});
        } else if (threadIdx.x == 0) {
            well = false;
        }
        if (__syncthreads_or(!well)) return false;
        to_ = of_block;
        return true;
    }

    // Threads that carry eager bytes.
    __device__ unsigned carriers() const { return eager_alone ? blockDim.x - header_threads : blockDim.x; }
    __device__ uint64_t load_unit(uint64_t at) const {
        const unsigned bytes = bytes_at(out_share_.end - out_share_.begin, at);
        const char* const from = static_cast<const char*>(kernel_.task.send) + out_.offset + out_share_.begin;
        return bytes ? load_up_to_8(from + at * unit, bytes) : 0;
    }

    // By one thread: what the packets are of.
    __device__ void push_header() const {
        const uint32_t bytes = static_cast<uint32_t>(out_.bytes);
        store_packet(far_ + kernel_.layout.eager(sent_ + 1, block_, kernel_.rank), kernel_.task.signature,
                     bytes, protocol::packet_flag(sent_ + 1));
    }
    // Of another length nothing is received: the sender has heard what is expected, and says so.
    __device__ bool hear_header() {
        const char* const at = own_ + kernel_.layout.eager(received_ + 1, block_, peer_);
        Wait wait;
        do {
            const Words packet = load_packet(at);
            if (!flagged(packet, protocol::packet_flag(received_ + 1))) continue;
            if (!runs_the_same(packet.at[0])) return false;
            if (packet.at[2] == in_.bytes) return true;
        } while (wait.go_on(kernel_, peer_));
        return false;
    }

    // By all carriers. `value`: this thread's first unit.
    __device__ void push_eager(uint64_t value) const {
        const uint64_t bytes = out_share_.end - out_share_.begin;
        const uint32_t flag = protocol::packet_flag(sent_ + 1);
        char* const lane =
            far_ + kernel_.layout.eager(sent_ + 1, block_, kernel_.rank) + ArenaLayout::eager_header;
#pragma unroll 1
        for (uint64_t at = threadIdx.x; at * unit < bytes; at += carriers()) {
            if (at >= carriers()) value = load_unit(at);
            store_packet(lane + 16 * at, value, flag);
        }
    }
    // False: leave.
    __device__ bool take_eager() {
        const uint64_t bytes = in_share_.end - in_share_.begin;
        const uint32_t flag = protocol::packet_flag(received_ + 1);
        const char* const lane =
            own_ + kernel_.layout.eager(received_ + 1, block_, peer_) + ArenaLayout::eager_header;
        char* const to = static_cast<char*>(kernel_.task.recv) + in_.offset + in_share_.begin;
#pragma unroll 1
        for (uint64_t at = threadIdx.x; at * unit < bytes; at += carriers()) {
            Words packet;
            if (!wait_packet(kernel_, lane + 16 * at, packet, flag, peer_)) return false;
            store_up_to_8(to + at * unit, payload_of(packet), bytes_at(bytes, at));
        }
        return true;
    }

    // Of the eager kernel. All threads; false: leave.
    __device__ bool exchange_eager() {
        if (threadIdx.x < carriers()) {
            if (sends_) push_eager(first_);
            return !receives_ || take_eager();
        }
        const unsigned lane = threadIdx.x - carriers();
        bool well = true;
        if (lane == 0 && receives_) post();
        if (lane == 1 && sends_) push_header();
        const uint64_t at_work = counts() ? kernel_.come_to_work() : 0;
        uint64_t words[4];
        if (lane == 1 && sends_) well = hear(words);
        if (lane == 0 && receives_) well = hear_header();
        __syncwarp();
        if (counts()) {
            kernel_.expect_alone(at_work);
            kernel_.leave_work();
        }
        return well;
    }

    // Of the other kernel: eager bytes leave first, and are taken last, so that no two ranks wait for each
    // other.
    __device__ bool exchange() {
        if (receives_ && !eager_in_ && protocol::wipes_eager(received_ + 1)) {
            wipe(received_);
            wipe(received_ + 1);
            __threadfence_system();
            __syncthreads();
        }
        if (threadIdx.x == 0 && receives_) post();
        if (counts()) kernel_.expect_alone(kernel_.come_to_work());
        if (eager_out_) {
            if (threadIdx.x == 0) push_header();
            push_eager(load_unit(threadIdx.x));
        }
        if (sends_ && !eager_out_ && !learn_target()) return false;
        if (!take_turns()) return false;
        bool well = !eager_in_ || take_eager();
        if (threadIdx.x == 0 && eager_in_) well = hear_header() && well;
        uint64_t words[4];
        if (threadIdx.x == 0 && eager_out_) well = well && hear(words);
        if (__syncthreads_or(!well)) return false;
        if (!counted_) count();
        return true;
    }

    static __device__ uint64_t pieces(uint64_t bytes, bool direct, uint64_t piece) {
        const uint64_t wanted = direct ? 1 : (bytes + piece - 1) / piece;
        return wanted ? wanted : 1;
    }

    // What is not eager, piece by piece in turns: the other end does the same, so neither waits for what
    // comes later.
    __device__ bool take_turns() {
        const uint64_t piece = kernel_.layout.stage_bytes();
        const Share out = out_share_;
        const Share in = in_share_;
        const bool direct = !unreachable(own_token());
        const bool sends = sends_ && !eager_out_;
        const bool receives = receives_ && !eager_in_;
        if (sends) outgoing_ = pieces(out.end - out.begin, to_ != nullptr, piece);
        if (receives) incoming_ = pieces(in.end - in.begin, direct, piece);
        const uint64_t turns = max(sends ? outgoing_ : 0, receives ? incoming_ : 0);
        for (uint64_t k = 0; k < turns; ++k) {
            if (sends && k < outgoing_ && !send(out, k, piece)) return false;
            // Others alone are still waited for: what comes after it takes no time then.
            if (k + 1 == turns && direct && !eager_in_ && !eager_out_) count();
            if (receives && k < incoming_ && !receive(in, k, piece, direct)) return false;
        }
        return true;
    }

    __device__ bool send(const Share& out, uint64_t k, uint64_t piece) {
        const char* const from = static_cast<const char*>(kernel_.task.send) + out_.offset + out.begin;
        const uint64_t bytes = out.end - out.begin;
        if (to_ && Tiles::pay(kernel_.ranks, out_.bytes)) {
            push_tiles();
        } else if (to_) {
            copy(from, to_ + out.begin, bytes);
        } else {
            if (k >= 2 && !wait(kernel_.layout.credit(block_, peer_), sent_ + k - 1)) return false;
            const uint64_t begin = k * piece;
            const uint64_t length = bytes - begin < piece ? bytes - begin : piece;
            copy(from + begin, far_ + kernel_.layout.stage_in(k & 1, block_, kernel_.rank), length);
        }
        __syncthreads();
        if (threadIdx.x == 0) store_flag(far_ + kernel_.layout.arrived(block_, kernel_.rank), sent_ + k + 1);
        return true;
    }

    __device__ void push_tiles() {
        const char* const from = static_cast<const char*>(kernel_.task.send) + out_.offset;
        Tiles(kernel_, peer_, out_.bytes, blocks_of(out_)).take([&](uint64_t begin, uint64_t bytes) {
            copy(from + begin, to_ + begin, bytes);
        });
    }

    __device__ bool receive(const Share& in, uint64_t k, uint64_t piece, bool direct) {
        if (!wait(kernel_.layout.arrived(block_, peer_), received_ + k + 1)) return false;
        if (direct) return true;
        const uint64_t begin = k * piece;
        const uint64_t bytes = in.end - in.begin;
        const uint64_t length = bytes - begin < piece ? bytes - begin : piece;
        char* const to = static_cast<char*>(kernel_.task.recv) + in_.offset + in.begin + begin;
        copy(own_ + kernel_.layout.stage_in(k & 1, block_, peer_), to, length);
        __syncthreads();
        if (threadIdx.x == 0)
            store_flag(far_ + kernel_.layout.credit(block_, kernel_.rank), received_ + k + 1);
        return true;
    }

    // All threads. False: leave.
    __device__ bool wait(uint64_t offset, uint64_t value) {
        bool well = true;
        if (threadIdx.x == 0) well = wait_flag(kernel_, own_ + offset, value, peer_);
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
        Copying::run<4>(ends_, bytes, blockDim.x);  // its blocks have half as many threads as others
    }

    // All threads: what the next task goes on from. They have read it before they came past the first barrier.
    __device__ void count() {
        counted_ = true;
        if (!counts()) return;
        store_counters();
        kernel_.leave_work();
    }
    __device__ void store_counters() const {
        SeatControl& control = *kernel_.station.control;
        if (sends_) control.sent[block_][peer_] = sent_ + outgoing_;
        if (receives_) control.received[block_][peer_] = received_ + incoming_;
    }

    __device__ void end() const {
        if (eager_alone && counts()) store_counters();
        if (!eager_in_ || !protocol::wipes_eager(received_ + 1)) return;
        __syncthreads();
        wipe(received_ + 1);
    }

    // The slot of message `number` of the peer.
    __device__ void wipe(uint64_t number) const {
        if (block_ >= kernel_.layout.eager_blocks()) return;
        char* const slot = own_ + kernel_.layout.eager(number, block_, peer_);
#pragma unroll 1
        for (uint64_t at = 16 * threadIdx.x; at < ArenaLayout::eager_slot; at += 16 * blockDim.x)
            store16(slot + at, Words{});
    }

    KernelContext kernel_;
    Ends& ends_;
    const unsigned peer_;
    const unsigned block_;
    protocol::Block out_;  // in bytes from `send`
    protocol::Block in_;   // and from `recv`
    Share out_share_;
    Share in_share_;
    bool sends_ = false;
    bool receives_ = false;
    bool eager_out_ = false;
    bool eager_in_ = false;
    bool counted_ = false;
    uint64_t sent_ = 0;
    uint64_t received_ = 0;
    uint64_t outgoing_ = 1;  // pieces, where it sends at all
    uint64_t incoming_ = 1;
    uint64_t first_ = 0;   // unit of this thread
    char* own_ = nullptr;  // arenas
    char* far_ = nullptr;
    char* to_ = nullptr;
};

}  // namespace sidestep::backends::cuda
