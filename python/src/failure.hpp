// From Result and Error to Python's exceptions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>

#include <sidestep/result.hpp>

namespace sidestep::python {

namespace py = pybind11;

// Text of the library that may name a file, as os.fsdecode() gives it: a path need be no UTF-8, and what is
// not becomes surrogates. With the GIL.
py::str decoded(std::string_view text);
py::list decoded(const std::vector<std::string>& texts);

// Throws sidestep.Error. With the GIL.
[[noreturn]] void raise(const Error& error);

// Throws BufferError, which the DLPack and buffer protocols ask for. With the GIL.
[[noreturn]] void raise_buffer_error(const std::string& text);

template <typename T>
T value(Result<T> result) {
    if (!result) raise(result.error());
    return std::move(*result);
}

inline void value(const Result<void>& result) {
    if (!result) raise(result.error());
}

}  // namespace sidestep::python
