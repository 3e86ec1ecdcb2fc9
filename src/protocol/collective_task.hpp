// What one rank of a collective does, as plain data: the same value goes to a kernel on a real GPU and to the
// threads of an emulated one, and both keep their flags, packets and staged bytes in an arena of one layout.
// Included by device code, so nothing but built-in types.
//
// These shapes carry the collectives:
//   packets  small sizes: data travels in 16-byte packets {4 bytes, flag, 4 bytes, flag} that are pushed into
//            the arenas of the others, so no fence and no barrier is needed (the protocol NCCL calls LL: an
//            aligned half of a packet, 8 bytes, arrives as a whole). Optionally in two phases:
//            reduce-scatter, then all-gather.
//   coalesced  small sizes of several calls of one kind in one task: the packets of one call lie behind those of the
//            other in the same lanes.
//   lamport  small reductions of floats of 8 to 32 bits, in one phase: the data is its own flag. A lane holds
//            words that are all ones, which no sender ever writes, until the data has come (after Lamport's
//            queue of one writer and one reader, "Proving the correctness of multiprocess programs", 1977;
//            TensorRT-LLM sends so).
//   lines    middle sizes over NVLink, with one flag for each 120 bytes: 8 threads of a warp write an aligned
//            line of 128 bytes at once, which arrives as a whole (NCCL calls it LL128). In two phases: sources
//            to the owner of a slice, the owner to the targets; either has nothing to do where owners are the
//            only sources or targets.
//   slices   large sizes: each rank owns a slice, reads it from `sources`, reduces in the order of ranks, and
//            writes it to `targets`. One flag from everybody before, one after.
//   pushed_slices   the same slices, but the sources write what the owner combines onto its stage, in pieces:
//            links carry more where nothing is read through them, and there is one more flag to wait for.
//   pairs    blocks from one rank to another, each pair for itself: the receiver posts where to, the sender
//            pushes, then a flag. Small ones are eager: pushed at once, as packets, into room that the receiver
//            keeps for them. Ranks without a block take no part.
//   copies   blocks from one rank to another too, by copy engines that a thread of the host drives, without
//            any thread block: copy_exchange.hpp.
//   ring     large sizes where links are slow and shared: pieces go from neighbour to neighbour alone, through
//            their arenas. What is combined goes up from rank 0 to the last one, so that the order of ranks is
//            kept, and comes down again, both at once; what is only moved goes around: ring_path.hpp.
// Memory that not every rank has mapped is carried through the arena instead, in chunks; all ranks learn in
// the first exchange whether that is so, and decide alike. Slices are pushed then.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sidestep::protocol {

constexpr unsigned max_ranks = 16;    // of a group on one machine
constexpr unsigned max_blocks = 128;  // thread blocks (CTAs) of one collective
// Those that have both an out and an in stage; of most shapes there are no more.
constexpr unsigned staging_blocks = 64;
constexpr unsigned max_coalesced = max_ranks;  // calls of one task
constexpr unsigned max_slots = 1024;  // allocations of one rank that others have mapped; slot 0 is its arena

enum class Element : uint8_t { i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16, f8_e4m3, f8_e5m2 };
constexpr unsigned elements = 12;

constexpr unsigned size_of(Element element) {
    switch (element) {
        case Element::i8:
        case Element::u8:
        case Element::f8_e4m3:
        case Element::f8_e5m2:
            return 1;
        case Element::f16:
        case Element::bf16:
            return 2;
        case Element::i32:
        case Element::u32:
        case Element::f32:
            return 4;
        default:
            return 8;
    }
}

// Of the type that elements are accumulated in: see Combine.
constexpr unsigned accumulator_size_of(Element element) {
    switch (element) {
        case Element::f16:
        case Element::bf16:
        case Element::f8_e4m3:
        case Element::f8_e5m2:
            return 4;
        default:
            return size_of(element);
    }
}

// How elements are combined, always in the order of ranks 0, 1, ... n-1. Types of 8 and 16 bits that are
// floats accumulate in 32 bits, f32 and f64 in their own; one rounding at the end. Integers wrap in their own
// type. `none`: the bytes of the one source as they are.
enum class Combine : uint8_t { none, sum, prod, min, max, avg, scaled_sum };

enum class Shape : uint8_t {
    packets,
    lamport,
    packets_two_phase,
    lines,
    slices,
    pushed_slices,
    pairs,
    copies,
    ring,
    coalesced
};

// Of `lamport`, 32-bit words: what a lane holds before the data comes, and what is sent in the place of such
// a word. All ones are NaNs in every type that is carried so, alone or side by side, and so is what replaces
// them; the sum, product, minimum or maximum of two NaNs has the same bits whichever they were.
constexpr uint32_t lamport_empty = 0xffffffff;
constexpr uint32_t lamport_instead = 0x7fffffff;
constexpr unsigned lamport_sets = 3;  // of lanes
// Bytes that are sent and awaited at a time; the last ones are filled up with zeros.
constexpr unsigned lamport_unit = 16;

// Whether elements of the type may be sent as `lamport`: floats of which a word of all ones holds nothing but
// NaNs.
constexpr bool has_lamport(Element element) {
    switch (element) {
        case Element::f16:
        case Element::bf16:
        case Element::f32:
        case Element::f8_e4m3:
        case Element::f8_e5m2:
            return true;
        default:
            return false;
    }
}

// What a rank counts of lamport tasks, in one word that is 0 at first: the set of the next one in the lowest
// two bits, and above them how many units of each rank the last one has left in the set before it.
constexpr unsigned lamport_set(uint32_t lamport) {
    return lamport & 3;
}
constexpr unsigned lamport_stale_set(uint32_t lamport) {
    return (lamport_set(lamport) + lamport_sets - 1) % lamport_sets;
}
constexpr uint32_t lamport_left(uint32_t lamport) {
    return lamport >> 2;
}
constexpr uint32_t lamport_after(uint32_t lamport, uint64_t units) {
    return static_cast<uint32_t>(units) << 2 | (lamport_set(lamport) + 1) % lamport_sets;
}

// Of `lines`: 120 bytes of payload, then the flag, in an aligned line of 128 bytes; a warp works on four of
// them.
constexpr uint64_t line_payload = 120;
constexpr unsigned row_lines = 4;
constexpr uint64_t row_payload = row_lines * line_payload;
// Warps of a thread block that carry lines, one row each at a time, where registers suffice.
constexpr unsigned line_warps = 19;
constexpr uint64_t row_bytes = row_lines * 128;

// In the word of an entry line that holds the signature: some target of this rank is off a boundary of 16.
constexpr uint64_t misaligned = uint64_t{1} << 32;

constexpr uint64_t eager_share = 4096;  // of an eager block of pairs: what one thread block carries
// Pieces of pushed slices that may be on their way from one rank to another.
constexpr unsigned push_slots = 4;
constexpr unsigned ring_slots = 4;  // messages that may be on their way from one rank to its neighbour

// Where the others find memory of this rank: the slot of the allocation in their tables, and the offset in
// it.
struct Token {
    static constexpr uint16_t unreachable = 0xffff;
    uint16_t slot = unreachable;  // unreachable: not everybody has mapped it
    uint64_t offset = 0;          // below 1 << 47
};

// One rank's part of `slices`, in elements of the task. Every rank fills in those of all ranks, alike.
struct Slice {
    uint64_t count = 0;          // 0: this rank has no slice
    uint64_t source_offset = 0;  // in the send buffer of every source
    uint64_t target_offset = 0;  // in the receive buffer of every target
    uint16_t sources = 0;        // bit r: rank r is read from; of one bit with Combine::none
    uint16_t targets = 0;        // bit r: rank r is written to
};

// A block between this rank and another one, in bytes.
struct Block {
    uint64_t offset = 0;
    uint64_t bytes = 0;
};

// One call of a task of Shape::coalesced. Its units of 8 bytes are those from `unit` on in every lane.
struct CoalescedCall {
    uint64_t send = 0;  // from the task's send buffer on; of calls in front of it this wraps around
    uint64_t recv = 0;
    uint64_t bytes = 0;  // of one block
    uint64_t unit = 0;
    constexpr uint64_t end() const { return unit + (bytes + 7) / 8; }
};

// `scale` holds one element of the task's type, in its first bytes, for Combine::scaled_sum: every input of
// this rank is multiplied by it first, in the accumulator's type. The others learn it: each rank has its own,
// so it is not a part of what has to agree. With `device_scale` it is read from there instead, when the task
// runs.
struct CollectiveTask {
    Shape shape = Shape::packets;
    Element element = Element::u8;
    Combine combine = Combine::none;
    uint8_t blocks = 1;        // thread blocks, alike on all ranks; `pairs` derive theirs from the bytes
    uint8_t calls = 0;         // coalesced: 1 to max_coalesced
    bool send_blocks = false;  // coalesced: each call sends rank r its block r, and not all the same bytes
    bool recv_blocks = false;  // and rank r's bytes are its block r here, and not combined into the only one
    uint32_t signature = 0;    // of what has to agree between ranks; never 0
    uint64_t number = 0;       // of the operation, for reports
    const void* send = nullptr;
    void* recv = nullptr;
    Token send_token;  // of `send` and `recv`
    Token recv_token;
    uint64_t scale = 0;
    const void* device_scale = nullptr;
    // Pairs: blocks of more bytes are not eager, whatever the arena holds, and those that are not have so many
    // thread blocks for all pairs together; both alike on all ranks.
    uint64_t eager_max = ~uint64_t{0};
    uint64_t pair_blocks_max = max_blocks;

    // packets: `to[r]` of the send buffer goes to rank r, `from[r]` is where rank r's goes in the receive
    // buffer, or with a Combine other than none all sources are combined into from[me]. to[me] is copied, or
    // counted in, without leaving the GPU. Blocks of 0 bytes are sent too, as a bare flag: every packet task
    // waits for every rank. packets_two_phase: slices[r] is reduced by rank r and goes to all: combine of all
    // sources, targets all. pairs: the same two lists; a block of 0 bytes at both ends is not a block. The
    // receiver posts from_tokens[r], where the first byte of rank r's block lies: the blocks of a group of
    // receives may lie in several allocations. Offsets are from `send` and `recv` on this rank in any case.
    // send == recv with the same blocks in both lists: see ArenaLayout, pairs. With device lists (all four,
    // `ranks` entries each, in elements) the blocks are read from GPU memory when the task runs, and
    // recv_token + offset is posted; pairs only. copies: the two lists and from_tokens. Every rank waits for
    // every other one, of blocks of 0 bytes too.
    // coalesced: call(i) in to[i] and from[i], and no blocks.
    Block to[max_ranks];
    Block from[max_ranks];
    Token from_tokens[max_ranks];
    const uint64_t* device_send_offsets = nullptr;
    const uint64_t* device_send_counts = nullptr;
    const uint64_t* device_recv_offsets = nullptr;
    const uint64_t* device_recv_counts = nullptr;

    // slices, lines, and ring, where a slice has no owner: combined, all ranks are sources of each slice;
    // moved, slice r has the source r, or all have the same one.
    Slice slices[max_ranks];
    // A copy within this rank, which nothing else of the task touches (not of packets), of `local_bytes` from
    // `send` + local_from to `recv` + local_to.
    uint64_t local_from = 0;
    uint64_t local_to = 0;
    uint64_t local_bytes = 0;

    constexpr CoalescedCall call(unsigned i) const {
        return {to[i].offset, from[i].offset, to[i].bytes, from[i].bytes};
    }
    constexpr void set_call(unsigned i, const CoalescedCall& call) {
        to[i] = {call.send, call.bytes};
        from[i] = {call.recv, call.unit};
    }
};
static_assert(sizeof(CollectiveTask) <= 2048, "a parameter of every launch");

// The part of `count` units that block `block` of `blocks` works on, in units, cut at multiples of `granule`.
struct Share {
    uint64_t begin;
    uint64_t end;
};
constexpr Share share_of(uint64_t count, unsigned block, unsigned blocks, uint64_t granule) {
    const uint64_t granules = (count + granule - 1) / granule;
    const uint64_t begin = granules * block / blocks * granule;
    const uint64_t end = granules * (block + 1) / blocks * granule;
    return {begin < count ? begin : count, end < count ? end : count};
}

// The arena of a rank: flags, packets and staged bytes that the others write. Offsets in bytes; zeroed at
// first.
//
// What each rank counts for itself, in memory that stays from task to task so that graphs can be launched
// again:
//   epoch            packet tasks so far. Blocks of one task share it; 1 is added once all know it.
//   lamport          which of three sets of lanes the next lamport task uses, and how much the last one has left in its own.
//   round[block]     barriers that thread block `block` has passed, over all `slices` tasks.
//   sent[block][rank], received[block][rank]   `pairs` passes so far, in each direction.
// Ranks run the same tasks with the same number of blocks, so that these agree.
//
// packets: the flag of a packet is packet_flag(epoch). All ranks send to all in every task, so a rank that
// begins epoch e has everybody's packets of e-1, and everybody has read those of e-2: two parities suffice.
// Packet 0 of a lane is the header {signature, flag, 0, flag}; with scaled_sum, packet 1 of a lane of phase 0
// is {scale low, flag, scale high, flag}, the sender's. Before the flags wrap around (every 2^30 epochs) a
// rank wipes the parity that it has read. Phase 1 needs no parity: a rank sends there what it has combined,
// so everybody has begun this task, and has read what lay there from tasks before; for the same reason a rank
// may wipe it at the end of a task.
//
// coalesced: as packets, in their lanes. Every block of a call begins with a packet of its own.
//
// lines: epochs, parities and headers as packets, in the same lanes for these; no task ends before it has
// everybody's header, and so two parities suffice, whoever sends lines to whom. Line l of a lane has bytes
// 120 l to 120 l + 119 of the slice: the first 8 bytes of its k-th 16 are unit k of those (8 bytes), the
// others unit k + 8, and the last 8 bytes are line_flag(epoch). Those do not wrap around, and nothing else is
// ever put there, so nothing is wiped.
//
// lamport: epochs, headers and scales as packets, in the same lanes for these. Three sets of lanes take
// turns. While task k of lamport waits for what comes into set k % 3, it empties what task k - 1 has read,
// which nobody writes to before task k + 2: who begins that one has everybody's header and data of k + 1,
// sent when task k had ended.
//
// slices: each block exchanges entry lines, then works, then passes a barrier. Blocks may share out a slice as
// they like, since all of them pass one. A barrier: add 1 to round[block], write it to flags(block, me) of
// everybody (release), wait until all of one's own flags(block, *) are that far. The exchange of entry lines adds
// 1 to the round too: it is the flag in the line's packets, and its lowest bit the parity.
//    line: 4 packets {send token, recv token, signature | misaligned, scale of the rank or 0}; a token is slot << 48 |
//    offset
// Where a token is unreachable of memory that is used (the send token of a rank that is a source of any
// slice, the recv token of a rank that is a target), slices are pushed; what nobody looks at forces nothing.
//
// pushed_slices: blocks meet as those of slices do. Then each takes turns, and turn t deals with pieces of
// share b of every slice, push_piece_bytes() long: piece t of what is a source here goes to push_slot(b, t,
// me) of the slices' owners; piece t - 2 of its own slice each owner combines, from its push_slot(b, t - 2,
// r) and its own buffer, in the order of ranks, into the targets. Before a turn a block waits until flags(b,
// *) say that everybody is done with the turn before the last one, then writes to everybody that it is done
// with the last one (release), and goes on while that store waits for what was written before it. So piece t
// - 2 has come, and the slot of piece t, which piece t - 4 lay in, is free. `round` counts turns as it counts
// barriers; turn 0 needs none, and one passes as a barrier behind the last. Where a rank that is a target is
// out of reach, or some target lies off a boundary of 16 (bit `misaligned` of the signature's word), all owners
// write to the targets' in_slot(b, t - 2, owner) instead, from where piece t - 4 is copied to its place in
// turn t; thread blocks from staging_blocks on, whose push slots those are, have no share then.
//
// pairs: block b of a pair carries share b of its bytes (pair_blocks()). What is pushed straight into place the
// sender's blocks may share out otherwise, since each of them is waited for. The receiver adds 1 to
// received[b][peer] and posts a line to the sender: 4 packets {recv token + offset or unreachable, bytes,
// signature, 0}, flag received. The sender waits for the line with flag sent + 1, pushes, and writes sent + 1
// to arrived(b, me) at the receiver (release). Into memory that the sender cannot reach it pushes pieces of
// stage_bytes(), piece k to stage_in(k & 1, b, me) of the receiver, and adds 1 to `arrived` for each; the
// receiver copies them out and writes received + how many of this task to credit(b, me) at the sender, who
// stays at most 2 pieces ahead: like `arrived`, `credit` counts all pieces since the arena was made. After a
// staged task `arrived`, `credit`, `sent` and `received` all have advanced by the number of pieces (at least
// 1); after a direct one all but `credit` by 1. That it stays behind hurts nobody, since a sender only waits
// for more than `sent`. A block that both sends to a peer and receives from it takes turns piece by piece, so
// that no two wait for each other: piece k is sent before piece k of the other is copied out, so that with
// unreachable tokens send and receive block may be the same bytes.
//
// A block of pairs of at most eager_payload() and the task's eager_max is eager: the sender pushes packets
// with flag sent + 1 to eager(sent + 1, b, me) before it has heard anything, behind a header {signature,
// flag, bytes, flag}, and ends when it has the receiver's line, which is posted as ever; neither `arrived`
// nor `credit` moves. Who begins message k so knows that its receiver has begun k - 1, and has read what lies
// in the slot of k, which k - 2 or one before that left there. A receiver may be in k + 1 before its line of
// k has been read, so lines have two places too. Before the flags wrap around a receiver wipes the slot that
// it is done with, or both before it posts the line of a block that is not eager, which nobody writes to
// then: in `eager_wiped` messages of every eager_period.
//
// ring: each block exchanges entry lines with all, as slices do, without tokens. Then it passes messages, of
// one piece each, to a neighbour's ring_slot(): message k of a task (counted for each neighbour) goes to slot
// k. `arrived`, `credit`, `sent` and `received` count messages as they count the pieces of staged pairs, and
// the sender stays at most ring_slots messages ahead. Thread blocks that carry what comes down need no entry:
// what comes down has passed all ranks. Nobody leaves before everything that is addressed to it has come.
struct ArenaLayout {
    unsigned ranks;

    // Largest block of one source in `packets`, and of one slice in packets_two_phase.
    constexpr uint64_t packet_payload() const { return (uint64_t{512} << 10) >> halvings(); }
    // Largest slice in `lines`. Of two ranks each has one other, and one lane for it where others have one
    // for each rank.
    constexpr uint64_t lines_payload() const {
        return ranks <= 2 ? uint64_t{2} << 20 : (uint64_t{4} << 20) >> halvings();
    }
    // What one pass of a staged slice or pair carries, for each rank and thread block.
    constexpr uint64_t stage_bytes() const { return (uint64_t{128} << 10) >> halvings(); }

    static constexpr uint64_t line = 64;
    constexpr uint64_t entry(unsigned parity, unsigned block, unsigned rank) const {
        return ((uint64_t{parity} * max_blocks + block) * ranks + rank) * line;
    }
    constexpr uint64_t flags(unsigned block, unsigned rank) const { return entry(2, block, rank); }
    constexpr uint64_t post(uint64_t number, unsigned block, unsigned rank) const {
        return entry(3 + (number & 1), block, rank);
    }
    constexpr uint64_t arrived(unsigned block, unsigned rank) const { return entry(5, block, rank); }
    constexpr uint64_t credit(unsigned block, unsigned rank) const { return entry(6, block, rank); }
    // The header packet, then 32 bytes of packets for each 16 bytes of payload.
    constexpr uint64_t packet_lane() const { return 128 + 2 * packet_payload(); }
    constexpr uint64_t header(unsigned phase, unsigned parity, unsigned rank) const {
        return entry(7, 0, 0) + (uint64_t{phase == 0 ? parity : 2} * ranks + rank) * packet_lane();
    }
    constexpr uint64_t packets(unsigned phase, unsigned parity, unsigned rank) const {
        return header(phase, parity, rank) + 128;
    }
    // Whole rows, so that loading a row never leaves the lane.
    constexpr uint64_t lines_lane() const {
        return (lines_payload() + row_payload - 1) / row_payload * row_bytes;
    }
    constexpr uint64_t lines(unsigned phase, unsigned parity, unsigned rank) const {
        return header(1, 0, ranks) +
               (uint64_t{phase} * 2 + parity) * (ranks <= 2 ? 1 : ranks) * lines_lane() +
               rank * lines_stride();
    }
    // From the lane of one rank to that of the next one.
    constexpr uint64_t lines_stride() const { return ranks <= 2 ? 0 : lines_lane(); }
    // Largest block of one source in `lamport`.
    constexpr uint64_t lamport_payload() const { return (uint64_t{768} << 10) >> halvings(); }
    constexpr uint64_t lamport(unsigned set, unsigned rank) const {
        return lines(2, 0, 0) + (uint64_t{set} * ranks + rank) * lamport_payload();
    }
    // All of those lanes, which are lamport_empty at first.
    constexpr uint64_t lamport_bytes() const { return lamport_sets * ranks * lamport_payload(); }
    // Largest eager block of `pairs`, and the slots that `rank` sends message `number` of a thread block to.
    // So many that a rank has 64 whole thread blocks at most for all others: an H200 has room for one on each
    // of 132 multiprocessors, and two groups have to run at a time.
    constexpr uint64_t eager_payload() const { return (uint64_t{256} << 10) >> halvings(); }
    constexpr unsigned eager_blocks() const { return static_cast<unsigned>(eager_payload() / eager_share); }
    static constexpr uint64_t eager_header = 128;
    static constexpr uint64_t eager_slot = eager_header + 2 * eager_share;
    constexpr uint64_t eager(uint64_t number, unsigned block, unsigned rank) const {
        return lamport(lamport_sets, 0) +
               (((number & 1) * eager_blocks() + block) * ranks + rank) * eager_slot;
    }
    constexpr uint64_t stage_out(unsigned parity, unsigned block, unsigned rank) const {
        return eager(0, 2 * eager_blocks(), 0) +
               ((uint64_t{parity} * staging_blocks + block) * ranks + rank) * stage_bytes();
    }
    constexpr uint64_t stage_in(unsigned parity, unsigned block, unsigned rank) const {
        return stage_out(2 + parity, block, rank);
    }

    // `pushed_slices` too: where `source` puts piece number `piece` for the owner of the arena, and where the
    // owner of a slice puts results. Seven eighths of the room: of 8 warps one says and hears, and the others
    // share a piece evenly.
    constexpr uint64_t push_piece_bytes() const { return push_room() / 8 * 7; }
    constexpr uint64_t push_slot(unsigned block, uint64_t piece, unsigned source) const {
        const uint64_t slot = uint64_t{block} * push_slots + piece % push_slots;
        return stage_out(0, 0, 0) + (slot * ranks + source) * push_room();
    }
    constexpr uint64_t in_slot(unsigned block, uint64_t piece, unsigned owner) const {
        return push_slot(staging_blocks + block, piece, owner);
    }

    // `ring` uses all of the room for staging: for each thread block ring_slots pieces that come up from the
    // rank before (or go around), and as many that come down from the one behind.
    constexpr uint64_t ring_piece_bytes() const { return 2 * ranks * stage_bytes() / ring_slots; }
    constexpr uint64_t ring_slot(bool down, unsigned block, uint64_t number) const {
        return stage_out(0, 0, 0) +
               ((uint64_t{block} * 2 + (down ? 1 : 0)) * ring_slots + number % ring_slots) *
                   ring_piece_bytes();
    }

    // `copies` (copy_exchange.hpp) uses all of the room for staging: two lanes for each other rank, at
    // `receiver` for what `sender` copies there. Behind it, on emulated GPUs, the lines that others tell this
    // rank in; of real ones they lie in host memory.
    constexpr uint64_t copy_lane_bytes() const {
        return ranks < 2
                   ? 0
                   : (stage_out(4, 0, 0) - stage_out(0, 0, 0)) / (2 * (uint64_t{ranks} - 1)) / 4096 * 4096;
    }
    constexpr uint64_t copy_lane(unsigned parity, unsigned receiver, unsigned sender) const {
        const uint64_t nth = sender < receiver ? sender : sender - 1;
        return stage_out(0, 0, 0) + (uint64_t{parity} * (ranks - 1) + nth) * copy_lane_bytes();
    }
    static constexpr uint64_t copy_row_bytes() { return max_ranks * line; }
    constexpr uint64_t copy_row() const { return stage_out(4, 0, 0); }

    constexpr uint64_t bytes() const { return copy_row() + copy_row_bytes(); }

private:
    // All of the room for staging, shared out.
    constexpr uint64_t push_room() const {
        return 4 * staging_blocks * stage_bytes() / (max_blocks * push_slots);
    }
    // Of `ranks` as the next power of two, the power: kernels would divide by a number that they do not know
    // beforehand.
    constexpr unsigned halvings() const { return ranks <= 2 ? 1 : ranks <= 4 ? 2 : ranks <= 8 ? 3 : 4; }
};
static_assert(max_blocks == 2 * staging_blocks);
static_assert(ArenaLayout{4}.bytes() < (uint64_t{64} << 20) &&
              ArenaLayout{16}.bytes() < (uint64_t{64} << 20));

// Never 0, which is what the arena holds at first.
constexpr uint32_t packet_flag(uint64_t epoch) {
    return static_cast<uint32_t>(epoch % 0xffffffffu) + 1;
}
// Neither, and never the same again.
constexpr uint64_t line_flag(uint64_t epoch) {
    return epoch + 1;
}

// Why a task gave up. The first one of a rank is kept; tasks after it return at once.
enum class FaultKind : uint32_t {
    none,
    aborted,    // Seat::abort()
    timed_out,  // `peer` did not come within the deadline
    mismatch,   // `peer` runs something else; of equal signatures, it names memory that is not mapped here
    size_mismatch,  // `peer` sends or expects another number of bytes
    overlapped,     // another task of this very rank was at work at the same time
};

struct FaultRecord {
    FaultKind kind = FaultKind::none;
    uint32_t peer = 0;            // whom it waited for, or who differed
    uint64_t number = 0;          // CollectiveTask::number
    uint32_t signature = 0;       // this rank's,
    uint32_t peer_signature = 0;  // and the other's, for a mismatch
    uint64_t bytes = 0;           // of a pair, this end,
    uint64_t peer_bytes = 0;      // and the other, for a size_mismatch
};

}  // namespace sidestep::protocol
