#include "tensor.hpp"

#include <algorithm>
#include <array>

#include <pybind11/stl.h>

#include "failure.hpp"

namespace sidestep::python {
namespace {

struct Known {
    Dtype dtype;
    dlpack::DataType dlpack;
    const char* format;  // of Python's struct module and PEP 3118; null where they know none
};

constexpr std::array<Known, 22> known_types{{
    {Dtype::boolean, {dlpack::boolean, 8, 1}, "?"},
    {Dtype::f4, {dlpack::float4_e2m1fn, 4, 1}, nullptr},
    {Dtype::f6_e2m3, {dlpack::float6_e2m3fn, 6, 1}, nullptr},
    {Dtype::f6_e3m2, {dlpack::float6_e3m2fn, 6, 1}, nullptr},
    {Dtype::u8, {dlpack::unsigned_integer, 8, 1}, "B"},
    {Dtype::i8, {dlpack::signed_integer, 8, 1}, "b"},
    {Dtype::f8_e5m2, {dlpack::float8_e5m2, 8, 1}, nullptr},
    {Dtype::f8_e4m3, {dlpack::float8_e4m3fn, 8, 1}, nullptr},
    {Dtype::f8_e8m0, {dlpack::float8_e8m0fnu, 8, 1}, nullptr},
    {Dtype::f8_e4m3fnuz, {dlpack::float8_e4m3fnuz, 8, 1}, nullptr},
    {Dtype::f8_e5m2fnuz, {dlpack::float8_e5m2fnuz, 8, 1}, nullptr},
    {Dtype::i16, {dlpack::signed_integer, 16, 1}, "h"},
    {Dtype::u16, {dlpack::unsigned_integer, 16, 1}, "H"},
    {Dtype::f16, {dlpack::floating, 16, 1}, "e"},
    {Dtype::bf16, {dlpack::bfloat, 16, 1}, nullptr},
    {Dtype::i32, {dlpack::signed_integer, 32, 1}, "i"},
    {Dtype::u32, {dlpack::unsigned_integer, 32, 1}, "I"},
    {Dtype::f32, {dlpack::floating, 32, 1}, "f"},
    {Dtype::c64, {dlpack::complex, 64, 1}, "Zf"},
    {Dtype::f64, {dlpack::floating, 64, 1}, "d"},
    {Dtype::i64, {dlpack::signed_integer, 64, 1}, "q"},
    {Dtype::u64, {dlpack::unsigned_integer, 64, 1}, "Q"},
}};

const Known* find(Dtype dtype) {
    const auto* found = std::find_if(known_types.begin(), known_types.end(),
                                     [dtype](const Known& known) { return known.dtype == dtype; });
    return found == known_types.end() ? nullptr : found;
}

// From one position of each axis to the next, where neighbours along the last are `unit` apart.
std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape, std::int64_t unit) {
    std::vector<std::int64_t> strides(shape.size());
    std::int64_t stride = unit;
    for (std::size_t i = shape.size(); i-- > 0;) {
        strides[i] = stride;
        // Only of an empty tensor extents can come to more than can be counted, and nobody steps through that.
        if (__builtin_mul_overflow(stride, std::max<std::int64_t>(shape[i], 1), &stride)) stride = unit;
    }
    return strides;
}

// Whether a tensor of that shape takes so many bytes.
bool comes_to(const std::vector<std::int64_t>& shape, int bits, Bytes bytes) {
    if (std::any_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent < 0; })) return false;
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return bytes == 0;
    Bytes product = static_cast<Bytes>(bits);
    for (const std::int64_t extent : shape)
        if (__builtin_mul_overflow(product, static_cast<Bytes>(extent), &product)) return false;
    return product % 8 == 0 && product / 8 == bytes;
}

// What a capsule owns: everything that the other library reads, and a share of the memory. Holds no Python
// object, so that the library may free it on any thread, without the GIL and after the interpreter.
template <typename M>
struct Exported {
    M managed{};
    std::shared_ptr<const void> owner;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
};

constexpr const char* name_of(const dlpack::Managed*) {
    return "dltensor";
}
constexpr const char* name_of(const dlpack::VersionedManaged*) {
    return "dltensor_versioned";
}

// Of a capsule that nobody took: who takes it changes its name.
template <typename M>
void forget_capsule(PyObject* capsule) {
    const char* name = name_of(static_cast<const M*>(nullptr));
    if (PyCapsule_IsValid(capsule, name) == 0) return;
    auto* managed = static_cast<M*>(PyCapsule_GetPointer(capsule, name));
    managed->deleter(managed);
}

template <typename M>
Exported<M>* export_tensor(const Tensor& tensor, dlpack::DataType type) {
    auto exported = std::make_unique<Exported<M>>();
    exported->owner = tensor.owner;
    exported->shape = tensor.shape;
    exported->strides = strides_of(tensor.shape, 1);
    exported->managed.view = {tensor.buffer.address(),
                              tensor.device,
                              static_cast<std::int32_t>(tensor.shape.size()),
                              type,
                              exported->shape.data(),
                              exported->strides.data(),
                              0};
    exported->managed.owner = exported.get();
    exported->managed.deleter = [](M* managed) { delete static_cast<Exported<M>*>(managed->owner); };
    return exported.release();
}

template <typename M>
py::object capsule_of(Exported<M>* exported) {
    PyObject* made = PyCapsule_New(&exported->managed, name_of(&exported->managed), forget_capsule<M>);
    if (made == nullptr) {
        delete exported;
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(made);
}

using MaxVersion = std::optional<std::pair<std::uint32_t, std::uint32_t>>;

// The stream is not looked at: the bytes were there before the tensor was handed out.
py::object to_dlpack(const Tensor& tensor, const py::object&, const MaxVersion& max_version,
                     const std::optional<std::pair<std::int32_t, std::int32_t>>& device,
                     std::optional<bool> copy) {
    if (device && (device->first != tensor.device.type || device->second != tensor.device.id))
        raise_buffer_error("the tensor is at " + tensor.buffer.place().to_string() +
                           ", and __dlpack__ moves no bytes: "
                           "copy it with sidestep.copy");
    if (copy.value_or(false))
        raise_buffer_error("__dlpack__ makes no copies: copy the tensor that comes of it");
    if (tensor.device.id < 0)
        raise_buffer_error(tensor.buffer.place().to_string() +
                           " is hidden from this process's CUDA (CUDA_VISIBLE_DEVICES)");
    const auto type = dlpack_type(tensor.dtype);
    if (!type)
        raise_buffer_error("DLPack has no type " + tensor.type_name + ": Tensor.as_bytes() gives the bytes");
    const bool versioned = max_version && max_version->first >= 1;
    const std::uint32_t minor = !versioned               ? 0
                                : max_version->first > 1 ? 1
                                                         : std::min<std::uint32_t>(max_version->second, 1);
    if (type->code >= dlpack::float8_e3m4 && minor < 1)
        raise_buffer_error("the other library reads DLPack before 1.1, which has no type for " +
                           tensor.type_name +
                           ": Tensor.as_bytes() gives the bytes, to be viewed as that type there");
    if (!versioned) return capsule_of(export_tensor<dlpack::Managed>(tensor, *type));
    auto* exported = export_tensor<dlpack::VersionedManaged>(tensor, *type);
    exported->managed.version = {1, minor};
    return capsule_of(exported);
}

// No exception may pass through the C code that calls this.
int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    view->obj = nullptr;
    const Tensor* tensor = nullptr;
    try {
        tensor = py::handle(self).cast<const Tensor*>();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_BufferError, error.what());
        return -1;
    }
    if (!tensor->on_cpu()) {
        PyErr_SetString(PyExc_BufferError, "the tensor is in GPU memory: hand it to a GPU library by DLPack");
        return -1;
    }
    const Known* known = find(tensor->dtype);
    if (known == nullptr || known->format == nullptr) {
        PyErr_Format(PyExc_BufferError, "Python's buffers have no type %s: Tensor.as_bytes() gives the bytes",
                     tensor->type_name.c_str());
        return -1;
    }
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS &&
        (flags & PyBUF_C_CONTIGUOUS) != PyBUF_C_CONTIGUOUS && tensor->shape.size() > 1) {
        PyErr_SetString(PyExc_BufferError, "the tensor is in C order");
        return -1;
    }
    if (tensor->shape.size() > PyBUF_MAX_NDIM) {
        PyErr_Format(PyExc_BufferError, "Python's buffers have at most %d axes, and the tensor has %zu",
                     PyBUF_MAX_NDIM, tensor->shape.size());
        return -1;
    }
    static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t));
    // Python's interface has no const; nobody writes to shape and strides. An empty tensor has some address
    // too.
    static char nothing = 0;
    view->buf = tensor->buffer.address() != nullptr ? tensor->buffer.address() : &nothing;
    view->len = static_cast<Py_ssize_t>(tensor->buffer.size());
    view->readonly = 0;
    view->itemsize = known->dlpack.bits / 8;
    view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(known->format) : nullptr;
    view->ndim = static_cast<int>(tensor->shape.size());
    view->shape = (flags & PyBUF_ND) != 0
                      ? reinterpret_cast<Py_ssize_t*>(const_cast<std::int64_t*>(tensor->shape.data()))
                      : nullptr;
    view->strides =
        (flags & PyBUF_STRIDES) == PyBUF_STRIDES
            ? reinterpret_cast<Py_ssize_t*>(const_cast<std::int64_t*>(tensor->byte_strides.data()))
            : nullptr;
    view->suboffsets = nullptr;
    view->internal = nullptr;
    view->obj = self;
    Py_INCREF(self);
    return 0;
}

Tensor as_bytes(const Tensor& tensor) {
    return make_tensor(tensor.owner, tensor.buffer, Dtype::u8, "U8",
                       {static_cast<std::int64_t>(tensor.buffer.size())}, tensor.device);
}

// The same memory with another type and shape, which must come to the same number of bytes.
Tensor view_as(const Tensor& tensor, const std::string& type_name, std::vector<std::int64_t> shape) {
    const auto type = parse_dtype(type_name);
    if (!type)
        raise({ErrorCode::invalid_argument, "there is no type '" + type_name + "'", "Tensor.view",
               "the types are those of safetensors: F32, BF16, ..."});
    if (!comes_to(shape, bits_of(*type), tensor.buffer.size()))
        raise({ErrorCode::invalid_argument,
               "type and shape do not come to " + std::to_string(tensor.buffer.size()) + " bytes",
               "Tensor.view",
               {}});
    return make_tensor(tensor.owner, tensor.buffer, *type, type_name, std::move(shape), tensor.device);
}

// The same memory under the name of a type of GGUF's own.
Tensor as_raw(const Tensor& tensor, const std::string& type_name, std::vector<std::int64_t> shape) {
    return make_tensor(tensor.owner, tensor.buffer, Dtype::other, type_name, std::move(shape), tensor.device);
}

Tensor part(const Tensor& tensor, Bytes from, Bytes bytes) {
    if (from > tensor.buffer.size() || bytes > tensor.buffer.size() - from)
        raise({ErrorCode::invalid_argument,
               "the part ends beyond the tensor's " + std::to_string(tensor.buffer.size()) + " bytes",
               "Tensor.part",
               {}});
    return make_tensor(tensor.owner, tensor.buffer.slice(from, bytes), Dtype::u8, "U8",
                       {static_cast<std::int64_t>(bytes)}, tensor.device);
}

// Without this NumPy would make an array of one Python object.
void refuse_array(const Tensor& tensor, const py::args&, const py::kwargs&) {
    if (!tensor.on_cpu())
        throw py::type_error("the tensor is in GPU memory: copy it to the host, or hand it on by DLPack");
    const Known* known = find(tensor.dtype);
    if (known == nullptr || known->format == nullptr)
        throw py::type_error("NumPy has no type " + tensor.type_name + ": Tensor.as_bytes() gives the bytes");
    throw py::type_error("NumPy refuses the tensor of " + std::to_string(tensor.shape.size()) +
                         " axes: Tensor.view() gives it fewer");
}

std::string repr(const Tensor& tensor) {
    std::string text = "sidestep.Tensor(" + tensor.type_name + ", (";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i)
        text += std::to_string(tensor.shape[i]) + (i + 1 < tensor.shape.size() ? ", "
                                                   : tensor.shape.size() == 1  ? ","
                                                                               : "");
    return text + "), " + tensor.buffer.place().to_string() + ")";
}

py::tuple tensor_shape(const Tensor& tensor) {
    py::tuple shape(tensor.shape.size());
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) shape[i] = tensor.shape[i];
    return shape;
}

}  // namespace

std::optional<dlpack::DataType> dlpack_type(Dtype type) {
    const Known* known = find(type);
    return known == nullptr ? std::nullopt : std::optional(known->dlpack);
}

std::optional<Dtype> dtype_of(dlpack::DataType type) {
    for (const Known& known : known_types)
        if (known.dlpack.code == type.code && known.dlpack.bits == type.bits && type.lanes == 1)
            return known.dtype;
    return std::nullopt;
}

Tensor make_tensor(std::shared_ptr<const void> owner, const Buffer& buffer, Dtype type, std::string type_name,
                   std::vector<std::int64_t> shape, dlpack::Device device) {
    Tensor tensor;
    tensor.owner = std::move(owner);
    tensor.buffer = buffer;
    tensor.type_name = std::move(type_name);
    tensor.dtype = type;
    tensor.shape = std::move(shape);
    tensor.device = device;
    if (bits_of(type) % 8 == 0) tensor.byte_strides = strides_of(tensor.shape, bits_of(type) / 8);
    return tensor;
}

void define_tensor(py::module_& module) {
    const auto with_buffers = [](PyHeapTypeObject* type) {
        type->ht_type.tp_as_buffer = &type->as_buffer;
        type->as_buffer.bf_getbuffer = get_buffer;
        type->as_buffer.bf_releasebuffer = nullptr;
    };
    py::class_<Tensor>(
        module, "Tensor", py::custom_type_setup(with_buffers),
        "Memory with a type and a shape, C order, 256-byte aligned where sidestep allocated it. Keeps the\n"
        "memory alive; so does every array made of it. Safe to use from several threads.")
        .def_property_readonly(
            "dtype", [](const Tensor& tensor) { return tensor.type_name; },
            "As safetensors spells it: 'BF16'; of GGUF 'Q4_K'.")
        .def_property_readonly("shape", tensor_shape, "A tuple of ints; () for a scalar.")
        .def_property_readonly(
            "nbytes", [](const Tensor& tensor) { return tensor.buffer.size(); }, "Bytes.")
        .def_property_readonly(
            "place", [](const Tensor& tensor) { return tensor.buffer.place().to_string(); },
            "'gpu:0' (NVML's number) or 'host'.")
        .def_property_readonly(
            "data_ptr",
            [](const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.buffer.address()); },
            "The address of the first byte.")
        .def_property_readonly("on_cpu", &Tensor::on_cpu,
                               "Whether the CPU can read it: host memory and emulated GPUs.")
        .def_readonly("axis", &Tensor::axis,
                      "Along which the tensor was cut (layout 'axis'); -1: it is whole.")
        .def_readonly("first", &Tensor::first, "Of this part, the first position along `axis`.")
        .def_property_readonly("buffer", [](const Tensor& tensor) { return tensor.buffer; })
        .def("as_bytes", as_bytes, "The same memory as U8 with one axis, for libraries that lack the type.")
        .def("view", view_as, py::arg("dtype"), py::arg("shape"),
             "The same memory with another type and shape; Error (invalid_argument) where they do not come "
             "to nbytes.")
        .def("as_raw", as_raw, py::arg("dtype"), py::arg("shape"),
             "The same memory under the name of a type that only its file knows, such as GGUF's 'Q4_K'.")
        .def("part", part, py::arg("first"), py::arg("nbytes"),
             "`nbytes` bytes from byte `first` on, as U8 with one axis.")
        .def("__dlpack__", to_dlpack, py::kw_only(), py::arg("stream") = py::none(),
             py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
             py::arg("copy") = py::none(),
             "A DLPack capsule: versioned (1.0 or 1.1) where `max_version` says so, else the older kind. "
             "BufferError for a\n"
             "type that the asked version lacks, for another device, and for copy=True. `stream` is not "
             "used: the\n"
             "bytes have arrived.")
        .def(
            "__dlpack_device__",
            [](const Tensor& tensor) { return std::pair(tensor.device.type, tensor.device.id); },
            "(device type, number): (2, CUDA's number of the GPU), or (1, 0) for what the CPU can read.")
        .def("__array__", refuse_array,
             "What NumPy asks where the buffer protocol refused: TypeError with the reason.")
        .def("__repr__", repr);
}

}  // namespace sidestep::python
