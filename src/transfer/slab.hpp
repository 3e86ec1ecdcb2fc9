// A block of memory that is cut into pieces and stays whole underneath.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include <sidestep/allocation.hpp>

namespace sidestep::transfer {

// Pieces are powers of two and lie at multiples of their size; two halves that are free join again (a buddy
// allocator, so both calls take O(log n)). One thread at a time.
class Slab {
public:
    static constexpr Bytes smallest_piece = Bytes{64} << 10;

    // The memory's size is a power of two, at least one piece.
    explicit Slab(Allocation memory);

    const Buffer& buffer() const { return memory_.buffer(); }

    // Where a free piece of that size begins, counted from the slab's start; nothing where none is free.
    // `size` is a power of two, at least the smallest piece.
    std::optional<Bytes> take(Bytes size);
    // A piece that take() gave, with the size that take() was given.
    void give_back(Bytes offset, Bytes size);

private:
    Allocation memory_;
    std::vector<std::set<Bytes>> free_;  // by log2 of the size in smallest pieces: where free ones begin
};

}  // namespace sidestep::transfer
