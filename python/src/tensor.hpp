// A tensor in memory, as Python sees it.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>

#include <sidestep/buffer.hpp>
#include <sidestep/dtype.hpp>

#include "dlpack.hpp"

namespace sidestep::python {

namespace py = pybind11;

// Memory with a type and a shape, C order, without gaps. A value; copies share the memory.
struct Tensor {
    std::shared_ptr<const void> owner;
    Buffer buffer;
    std::string type_name;  // as the file spells it: "BF16"
    Dtype dtype = Dtype::u8;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> byte_strides;  // empty where an element is not a whole number of bytes
    int axis = -1;                           // along which the tensor was cut; -1: it is whole
    std::int64_t first = 0;                  // of the part, along `axis`
    // Where DLPack says that it is: emulated GPUs are CPU memory. A GPU that CUDA does not show this process
    // has no number there (id -1).
    dlpack::Device device{dlpack::on_cpu, 0};

    bool on_cpu() const { return device.type == dlpack::on_cpu; }
};

// Fills in what follows from type and shape. `type` is Dtype::other for the types of GGUF: no library takes
// those, and as_bytes() is the way to them.
Tensor make_tensor(std::shared_ptr<const void> owner, const Buffer& buffer, Dtype type, std::string type_name,
                   std::vector<std::int64_t> shape, dlpack::Device device);

// Nothing for Dtype::other.
std::optional<dlpack::DataType> dlpack_type(Dtype type);
std::optional<Dtype> dtype_of(dlpack::DataType type);

// Keeps a value alive until the last tensor over its memory is gone, on whichever thread that is, with the
// GIL or without. It is freed without the GIL, since freeing GPU memory waits for the GPU; and in a child of
// fork(), which has neither the driver nor the threads of its parent, not at all.
template <typename T>
std::shared_ptr<const void> keep(T kept) {
    return {new T(std::move(kept)), [process = getpid()](T* last) {
                if (getpid() != process) return;
                PyThreadState* python =
                    Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr;
                delete last;
                if (python != nullptr) PyEval_RestoreThread(python);
            }};
}

void define_tensor(py::module_& module);

}  // namespace sidestep::python
