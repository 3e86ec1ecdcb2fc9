#include "failure.hpp"

namespace sidestep::python {

py::str decoded(std::string_view text) {
    PyObject* made =
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
    if (made == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::str>(made);
}

py::list decoded(const std::vector<std::string>& texts) {
    py::list list;
    for (const std::string& text : texts) list.append(decoded(text));
    return list;
}

void raise(const Error& error) {
    // The class is Python's own, so that it can be pickled and has its documentation where readers look.
    const py::object type = py::module_::import("sidestep._errors").attr("Error");
    const py::object raised =
        type(decoded(error.message), to_string(error.code), decoded(error.where), decoded(error.hint));
    // Of the class that the code has, which is one below.
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
    throw py::error_already_set();
}

void raise_buffer_error(const std::string& text) {
    PyErr_SetString(PyExc_BufferError, text.c_str());
    throw py::error_already_set();
}

}  // namespace sidestep::python
