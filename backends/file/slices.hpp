// A piece cut into single reads or writes. Pure.
#pragma once

#include <vector>

#include <sidestep/units.hpp>

namespace sidestep::backends::file {

// What one request moves. Large enough that the request costs nothing beside it, small enough that the
// threads that copy from the page cache share one piece: reading a warm file with 16 threads was fastest
// with 2 MiB (50 GB/s; 44 with 8 MiB, 38 with 16 MiB; Xeon host of four H200).
inline constexpr Bytes slice_size = 2_MiB;

// O_DIRECT wants offsets, sizes and addresses in multiples of a block; no common device has larger ones.
inline constexpr Bytes direct_block = 4_KiB;

struct Slice {
    char* address = nullptr;
    Bytes offset = 0;  // in the file
    Bytes size = 0;
    bool direct = false;  // around the page cache
};

// Whether any of the bytes can go around the page cache: not where address and offset lie differently
// within a block, nor where no whole block is among them.
bool can_go_direct(const char* address, Bytes offset, Bytes size);

// Slices in the order of the file, together exactly the piece. With `direct` the whole blocks of a piece
// that can_go_direct() go around the page cache, its two ends through it.
std::vector<Slice> cut(char* address, Bytes offset, Bytes size, bool direct);

}  // namespace sidestep::backends::file
