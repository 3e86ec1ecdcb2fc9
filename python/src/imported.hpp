// Memory of other libraries, taken over by DLPack.
#pragma once

#include <pybind11/pybind11.h>

namespace sidestep::python {

void define_imported(pybind11::module_& module);

}  // namespace sidestep::python
