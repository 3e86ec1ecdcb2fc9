// The bytes of a part of a tensor.
#pragma once

#include <cstdint>
#include <vector>

#include <pybind11/pybind11.h>

namespace sidestep::python {

// A box of an array in C order as runs of bytes that lie together, `count` of them, each `length` bytes.
// Where they begin follows from the outer axes: sum over i of position[i] * stride[i], position[i] below
// extent[i].
struct Runs {
    std::uint64_t first = 0;   // byte at which the first one begins
    std::uint64_t length = 0;  // bytes of each
    std::uint64_t count = 0;
    std::vector<std::uint64_t> extents;
    std::vector<std::uint64_t> strides;  // bytes

    // First bytes of all runs, in order.
    std::vector<std::uint64_t> begins() const;
    // Bytes from the first byte of the first run to the last byte of the last one.
    std::uint64_t span() const;
};

// `begin[i]` up to `end[i]` along each axis of an array of `shape` with elements of `element` bytes. The
// caller keeps begin <= end <= shape.
Runs runs_of(const std::vector<std::uint64_t>& shape, const std::vector<std::uint64_t>& begin,
             const std::vector<std::uint64_t>& end, std::uint64_t element);

void define_slices(pybind11::module_& module);

}  // namespace sidestep::python
