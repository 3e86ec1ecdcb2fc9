// A piece cut into single reads or writes. Pure.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include <sidestep/units.hpp>
#include "driver/page_cache.hpp"

namespace sidestep::backends::file {

// What one request moves. Large enough that the request costs nothing beside it, small enough that the
// threads that copy from the page cache share one piece (docs/lab-book.md, "What constants stand on"). The last one takes
// a small rest along.
inline constexpr Bytes slice_size = 2_MiB;

// The same of a write around the page cache.
inline constexpr Bytes written_slice_size = 1_MiB;

// O_DIRECT wants offsets, sizes and addresses in multiples of a block; no common device has larger ones.
inline constexpr Bytes direct_block = 4_KiB;

// Smaller reads are worth no question to the page cache: copying them takes a few microseconds where it has
// them, and where it has not, its read-ahead serves those that follow.
inline constexpr Bytes min_question = 64_KiB;

// Bytes of a file and where they are in memory.
struct Stretch {
    char* address = nullptr;
    Bytes offset = 0;  // in the file
    Bytes size = 0;
    // Bytes of memory on either side that may be overwritten with anything.
    Bytes room_before = 0;
    Bytes room_after = 0;
};

struct Slice {
    char* address = nullptr;
    Bytes offset = 0;  // in the file
    Bytes size = 0;
    bool direct = false;  // around the page cache
    // Of `size`: what comes along at either end since only whole blocks move.
    Bytes before = 0;
    Bytes after = 0;
    Bytes missing = 0;  // of a read through the page cache: what it does not hold

    Bytes asked() const { return size - before - after; }
    // Just the bytes asked for, through the page cache.
    void go_through_cache();
};

// Whether any of the bytes can go around the page cache: not where address and offset lie differently by the
// memory's alignment, nor where no whole block is among them or in the room beside them.
bool can_go_direct(const Stretch& stretch, Bytes memory_alignment);

// Slices in the order of the file, whose asked() bytes are together exactly the stretch. With `direct` (which
// can_go_direct() allows) whole blocks go around the page cache: those that the stretch touches where there
// is room for them, else those within it, its two ends then through the page cache. `size`: of a slice.
std::vector<Slice> cut(const Stretch& stretch, bool direct, Bytes size = slice_size);

// That share of bytes.
Bytes part_of(Bytes bytes, double share);

// What the page cache holds of a range of the file; nothing where that cannot be told.
using AskCache = std::function<std::optional<driver::CachedPart>(Bytes offset, Bytes size)>;

// Lets slices go through the page cache after all where that is cheaper for a read. One question for all
// slices where the cache holds all of them or nothing; otherwise one more for each. Asked before anything of the piece is
// read, and not again.
void use_cache_where_cheaper(std::vector<Slice>& slices, const AskCache& ask);

}  // namespace sidestep::backends::file
