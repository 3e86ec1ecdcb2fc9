#include "slices.hpp"

#include <cstring>

#include <pybind11/stl.h>

#include "failure.hpp"
#include "tensor.hpp"

namespace sidestep::python {
namespace {

// Moves the runs of `from`, which holds the bytes from the first run's first on, together into `to`.
void gather(const Tensor& from, const Runs& runs, const Tensor& to) {
    if (!from.on_cpu() || !to.on_cpu() || from.buffer.size() < runs.span() ||
        to.buffer.size() != runs.count * runs.length)
        raise({ErrorCode::internal, "the memory does not fit the runs", "gather", {}});
    const py::gil_scoped_release without_gil;
    const auto* source = static_cast<const char*>(from.buffer.address());
    auto* target = static_cast<char*>(to.buffer.address());
    for (const std::uint64_t begin : runs.begins()) {
        std::memcpy(target, source + (begin - runs.first), runs.length);
        target += runs.length;
    }
}

}  // namespace

std::vector<std::uint64_t> Runs::begins() const {
    std::vector<std::uint64_t> all;
    all.reserve(count);
    std::vector<std::uint64_t> position(extents.size());
    std::uint64_t begin = first;
    for (std::uint64_t i = 0; i < count; ++i) {
        all.push_back(begin);
        for (std::size_t axis = extents.size(); axis-- > 0;) {
            begin += strides[axis];
            if (++position[axis] < extents[axis]) break;
            begin -= extents[axis] * strides[axis];
            position[axis] = 0;
        }
    }
    return all;
}

std::uint64_t Runs::span() const {
    if (count == 0) return 0;
    std::uint64_t last = 0;
    for (std::size_t axis = 0; axis < extents.size(); ++axis) last += (extents[axis] - 1) * strides[axis];
    return last + length;
}

Runs runs_of(const std::vector<std::uint64_t>& shape, const std::vector<std::uint64_t>& begin,
             const std::vector<std::uint64_t>& end, std::uint64_t element) {
    // Axes from `inner` on are whole; the one before them is what a run goes along.
    std::size_t inner = shape.size();
    while (inner > 0 && begin[inner - 1] == 0 && end[inner - 1] == shape[inner - 1]) --inner;
    const std::size_t outer = inner > 0 ? inner - 1 : 0;

    Runs runs;
    std::uint64_t stride = element;
    std::vector<std::uint64_t> strides(shape.size());
    for (std::size_t axis = shape.size(); axis-- > 0;) {
        strides[axis] = stride;
        stride *= shape[axis];
    }
    runs.count = 1;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) runs.first += begin[axis] * strides[axis];
    for (std::size_t axis = 0; axis < outer; ++axis) {
        runs.extents.push_back(end[axis] - begin[axis]);
        runs.strides.push_back(strides[axis]);
        runs.count *= end[axis] - begin[axis];
    }
    runs.length = element;
    for (std::size_t axis = outer; axis < shape.size(); ++axis) runs.length *= end[axis] - begin[axis];
    if (runs.length == 0) runs.count = 0;
    return runs;
}

void define_slices(py::module_& module) {
    py::class_<Runs>(module, "Runs", "The bytes of a part of a tensor, as runs that lie together.")
        .def(py::init(&runs_of), py::arg("shape"), py::arg("begin"), py::arg("end"), py::arg("element"))
        .def_readonly("first", &Runs::first)
        .def_readonly("length", &Runs::length)
        .def_readonly("count", &Runs::count)
        .def("begins", &Runs::begins)
        .def("span", &Runs::span)
        .def("gather",
             [](const Runs& runs, const Tensor& from, const Tensor& to) { gather(from, runs, to); });
}

}  // namespace sidestep::python
