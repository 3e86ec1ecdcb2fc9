// What a seat and its kernels share: counters and tables in GPU memory, words in pinned host memory, and the
// kernels' parameters. Included by device code, so nothing but built-in types.
#pragma once

#include "protocol/collective_task.hpp"

namespace sidestep::backends::cuda {

// In pinned host memory, so that the host writes `abort` and `deadline_ns` and reads `fault` while kernels
// run.
struct HostWords {
    uint32_t abort = 0;
    uint32_t unused = 0;
    uint64_t deadline_ns = 0;  // 0: none
    protocol::FaultRecord fault;
};

// Values of SeatControl::failed.
constexpr uint32_t failed_by_task = 1;
constexpr uint32_t failed_by_host = 2;  // the next task to see it makes it the first

// What a thread block of the seat's task number `task` adds to SeatControl::at_work when it comes, and takes away when
// it leaves. The lowest 16 bits count blocks. A block that finds anything but a multiple of its own mark there, as many
// times as is counted, has come beside a block of another task.
constexpr uint64_t mark_of_task(uint64_t task) {
    return task << 16 | 1;
}
constexpr bool alone_at_work(uint64_t found, uint64_t mark) {
    return found == (found & 0xffff) * mark;
}

// Memory of another rank, as mapped here. Null: none is.
struct Reach {
    char* base;
    uint64_t bytes;
};

// In GPU memory, zeroed at first. What several threads ask for at the start of a task lies in one line.
struct SeatControl {
    uint64_t epoch;
    uint32_t failed;   // not 0: a task gave up, and no later one begins
    uint32_t lamport;  // see protocol::lamport_set
    uint32_t done;     // thread blocks of the packet task that know its epoch
    uint32_t ended;    // and that have ended, where the last one wipes
    uint32_t unused[26];
    // What thread blocks at work have added, each the mark of its task: see mark_of_task. In a line of its own.
    uint64_t at_work;
    uint64_t unused_too[15];
    // Of slot s, rank r: reaches[s][r]. Slot 0 is the arenas.
    Reach reaches[protocol::max_slots][protocol::max_ranks];
    uint64_t round[protocol::max_blocks];
    uint64_t sent[protocol::max_blocks][protocol::max_ranks];
    uint64_t received[protocol::max_blocks][protocol::max_ranks];
    // Of what goes to a rank in tiles: the next one that no thread block has taken. 0 between tasks.
    uint32_t tiles[protocol::max_ranks];
};

// Behind the task, the second parameter of every kernel.
struct Station {
    SeatControl* control;
    HostWords* host;  // as the GPU sees them
    uint64_t marked;  // mark_of_task
    uint32_t rank;
    uint32_t ranks;
    // Of packet tasks, in packets, and of lamport, in its units: the longest block for another rank, and the
    // longest from one (of two_phase, the longest slice of another rank); whether what goes to the others is
    // the same bytes. Of lines the same in rows, and below which row all slices lie in whole, aligned units
    // of 8 bytes.
    uint64_t send_units;
    uint64_t receive_units;
    uint64_t whole_rows;
    uint32_t alike;
    uint32_t grain;  // of lamport: what all its blocks are aligned to and multiples of, 16, 4 or 1
    // Of `pairs`, grid y: whom its blocks deal with; this rank itself for a copy on the spot.
    uint8_t peers[protocol::max_ranks];
};

// Threads of a block that carry data. In packet tasks one more warp looks after the headers.
constexpr unsigned max_data_threads = 512;
constexpr unsigned header_threads = 32;
// Of pairs that are not eager alone: two blocks, among many ranks three, share a multiprocessor, and with more threads their registers do not
// suffice (8 MiB of all_to_all by two ranks of one H100: 12.8 us; with 512 threads, which spill, 22.4 us).
constexpr unsigned max_pair_threads = 256;
// In tasks of lamport, and of lines among more than four ranks: with one warp more a thread could have 96
// registers only, and these need some more, as do those that combine elements of 8 bits, of which a thread
// has more. Other lines among up to four do not.
constexpr unsigned max_line_threads = max_data_threads - header_threads;
constexpr unsigned line_threads(bool of_8_bits, unsigned ranks) {
    return ranks <= 4 && !of_8_bits ? 32 * protocol::line_warps : max_line_threads;
}

}  // namespace sidestep::backends::cuda
