// Where each tensor of a checkpoint, or each part of one, lies in the memory of each place. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <sidestep/load.hpp>

namespace sidestep::checkpoint {

inline constexpr Bytes tensor_alignment = 256;

// Which axis each tensor is cut along, counted from the front or, negative, from the last; nothing: it stays
// whole.
using Axes = std::vector<std::optional<int>>;

// How a tensor is cut: it is rows of `row` bytes, each of which holds one part after another.
struct Cut {
    int axis = 0;              // from the front
    std::uint64_t extent = 0;  // along it
    Bytes row = 0;
    // `step` positions along the axis are `width` bytes; cuts fall on multiples of it.
    std::uint64_t step = 1;
    Bytes width = 0;
    std::size_t parts = 1;

    // First position along the axis that part i has; that of part `parts` is the extent.
    std::uint64_t first(std::size_t i) const {
        return i * (extent / parts) + i * (extent % parts) / parts;  // = i * extent / parts, without overflow
    }
    // First byte of a row that part i has.
    Bytes begin(std::size_t i) const { return first(i) / step * width; }
    // The part that the byte of a row belongs to; it is never an empty one.
    std::size_t part_at(Bytes within_row) const;
};

// A tensor lies at the same offset of every memory that has it or a part of it, so that bytes for all places
// are one run. The slot of a cut tensor is as large as its largest part.
struct LayoutPlan {
    static constexpr std::uint32_t everywhere = ~std::uint32_t{0};
    static constexpr std::uint32_t whole = ~std::uint32_t{0};

    struct Slot {
        Bytes offset = 0;                  // multiple of tensor_alignment
        std::uint32_t place = everywhere;  // the only place that has it
        std::uint32_t cut = whole;         // position in `cuts`
    };
    std::vector<Slot> slots;  // by tensor
    std::vector<Cut> cuts;
    std::vector<Bytes> memory;  // by place: bytes to allocate, never 0

    bool has(std::size_t place, std::size_t tensor) const {
        return slots[tensor].place == everywhere || slots[tensor].place == place;
    }
    const Cut* cut(std::size_t tensor) const {
        return slots[tensor].cut == whole ? nullptr : &cuts[slots[tensor].cut];
    }
    // Bytes of the tensor that come to a place which has it.
    Bytes bytes(const TensorInfo& info, std::size_t tensor, std::size_t place) const;
    // Bytes that come to all places.
    Bytes bytes_to_arrive(const std::vector<TensorInfo>& tensors) const;
};

// `axes`, for Layout::by_axis, has an entry a tensor. Tensors are in the order of their files and offsets:
// what is neighbour there, and needs no padding, is neighbour in memory. Fails with invalid_argument, naming
// the tensor, where an axis is not there, a cut would fall within a byte or a block of quantised elements, or
// two tensors share bytes.
Result<LayoutPlan> lay_out(const std::vector<TensorInfo>& tensors, std::size_t places, Layout layout,
                           const Axes& axes = {});

// "replicate", "tensor", "axis".
const char* to_string(Layout layout);

}  // namespace sidestep::checkpoint
