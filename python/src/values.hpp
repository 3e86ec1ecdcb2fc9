// The plain data of the library as Python sees it: buffers, routes, receipts, topologies, options.
#pragma once

#include <chrono>

#include <pybind11/pybind11.h>

namespace sidestep::python {

void define_values(pybind11::module_& module);
void define_options(pybind11::module_& module);

// To the millisecond above, so that a short limit does not become none. Throws sidestep.Error for what no number of the
// library holds.
std::chrono::milliseconds milliseconds_of(const char* option, double seconds);

}  // namespace sidestep::python
