#include "transfer/slab.hpp"

#include <bit>

namespace sidestep::transfer {
namespace {

std::size_t order_of(Bytes size) {
    return static_cast<std::size_t>(std::countr_zero(size / Slab::smallest_piece));
}

}  // namespace

Slab::Slab(Allocation memory) : memory_(std::move(memory)), free_(order_of(memory_.size()) + 1) {
    free_.back().insert(0);
}

std::optional<Bytes> Slab::take(Bytes size) {
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

void Slab::give_back(Bytes offset, Bytes size) {
    std::size_t order = order_of(size);
    for (; order + 1 < free_.size(); ++order) {
        const Bytes other_half = offset ^ (smallest_piece << order);
        if (free_[order].erase(other_half) == 0) break;
        offset = std::min(offset, other_half);
    }
    free_[order].insert(offset);
}

}  // namespace sidestep::transfer
