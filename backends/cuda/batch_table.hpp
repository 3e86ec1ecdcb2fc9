// What the batch kernel is given: many copies, cut into tiles that warps share.
#pragma once

namespace sidestep::backends::cuda {

// Bytes that one warp copies at a time: eight words of 16 bytes a thread, all of them loaded before the first
// is stored.
constexpr unsigned batch_tile = 4096;
constexpr unsigned batch_threads = 256;
constexpr unsigned batch_warps = batch_threads / 32;

struct BatchEntry {
    unsigned long long to;
    unsigned long long from;
    unsigned bytes;
    unsigned end_tile;  // tiles of the entries up to this one
};

// A parameter of the kernel: it needs no memory of its own that would have to outlive the launch, and a graph
// keeps a copy in its node.
template <unsigned Entries>
struct BatchTable {
    unsigned count;
    unsigned tiles;
    BatchEntry entries[Entries];
};

// Two sizes, since all of a parameter is sent with every launch. Parameters may have 32,764 bytes in all
// (CUDA 12.1 and newer, compute capability 7.0 and newer).
constexpr unsigned small_batch = 128;
constexpr unsigned large_batch = 1360;
static_assert(sizeof(BatchTable<large_batch>) <= 32764);

}  // namespace sidestep::backends::cuda
