// Contexts and checkpoints as Python sees them.
#pragma once

#include <pybind11/pybind11.h>

namespace sidestep::python {

void define_checkpoint(pybind11::module_& module);
void define_context(pybind11::module_& module);

}  // namespace sidestep::python
