// The plain data of the library as Python sees it: buffers, routes, receipts, topologies, options.
#pragma once

#include <pybind11/pybind11.h>

namespace sidestep::python {

void define_values(pybind11::module_& module);
void define_options(pybind11::module_& module);

}  // namespace sidestep::python
