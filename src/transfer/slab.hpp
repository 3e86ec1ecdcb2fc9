// A block of memory that is cut into pieces and stays whole underneath.
#pragma once

#include <algorithm>
#include <bit>
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
    explicit Slab(Allocation memory) : memory_(std::move(memory)), free_(order_of(memory_.size()) + 1) {
        free_.back().insert(0);
    }

    const Buffer& buffer() const { return memory_.buffer(); }

    // Where a free piece of that size begins, counted from the slab's start; nothing where none is free.
    // `size` is a power of two, at least the smallest piece.
    std::optional<Bytes> take(Bytes size) {
        const std::size_t wanted = order_of(size);
        std::size_t order = wanted;
        while (order < free_.size() && free_[order].empty()) ++order;
        if (order >= free_.size()) return std::nullopt;
        const Bytes offset = *free_[order].begin();
        free_[order].erase(free_[order].begin());
        // The upper half of what is cut stays free.
        while (order > wanted) {
            --order;
            free_[order].insert(offset + (smallest_piece << order));
        }
        return offset;
    }

    // A piece that take() gave, with the size that take() was given.
    void give_back(Bytes offset, Bytes size) {
        std::size_t order = order_of(size);
        for (; order + 1 < free_.size(); ++order) {
            const Bytes other_half = offset ^ (smallest_piece << order);
            if (free_[order].erase(other_half) == 0) break;
            offset = std::min(offset, other_half);
        }
        free_[order].insert(offset);
    }

private:
    static std::size_t order_of(Bytes size) {
        return static_cast<std::size_t>(std::countr_zero(size / smallest_piece));
    }

    Allocation memory_;
    std::vector<std::set<Bytes>> free_;  // by log2 of the size in smallest pieces: where free ones begin
};

}  // namespace sidestep::transfer
