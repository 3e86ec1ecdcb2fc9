// From Result and Error to Python's exceptions.
#pragma once

#include <string>
#include <utility>

#include <pybind11/pybind11.h>

#include <sidestep/result.hpp>

namespace sidestep::python {

namespace py = pybind11;

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
