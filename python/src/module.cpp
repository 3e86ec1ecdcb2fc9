// The extension module sidestep._core: the library's types and calls, nothing decided here. Words, defaults
// and other libraries' types are dealt with in the Python files beside it.
#include <pybind11/pybind11.h>

#include <sidestep/result.hpp>
#include <sidestep/version.hpp>

#include "context.hpp"
#include "failure.hpp"
#include "group.hpp"
#include "imported.hpp"
#include "slices.hpp"
#include "tensor.hpp"
#include "values.hpp"

PYBIND11_MODULE(_core, module) {
    module.doc() = "What sidestep's Python files stand on. Not for use by itself.";
    module.attr("version") = sidestep::version();
    // For the tests: some failures cannot be brought about.
    module.def("fail", [](int code) {
        sidestep::python::raise({static_cast<sidestep::ErrorCode>(code), "what", "where", "hint"});
    });
    sidestep::python::define_values(module);
    sidestep::python::define_options(module);
    sidestep::python::define_tensor(module);
    sidestep::python::define_imported(module);
    sidestep::python::define_slices(module);
    sidestep::python::define_checkpoint(module);
    sidestep::python::define_group(module);
    sidestep::python::define_context(module);
}
