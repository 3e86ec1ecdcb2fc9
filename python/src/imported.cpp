#include "imported.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "dlpack.hpp"
#include "failure.hpp"
#include "tensor.hpp"

namespace sidestep::python {
namespace {

// What a capsule held. Its owner gets it back when this ends, on the thread and with the GIL that Python's
// objects end with: other libraries' deleters may need it.
class Imported {
public:
    explicit Imported(const py::capsule& capsule) {
        if (!take<dlpack::VersionedManaged>(capsule, "dltensor_versioned", "used_dltensor_versioned") &&
            !take<dlpack::Managed>(capsule, "dltensor", "used_dltensor"))
            raise({ErrorCode::invalid_argument,
                   "__dlpack__ gave no capsule that DLPack knows, or one that was used",
                   "DLPack",
                   {}});
    }
    Imported(const Imported&) = delete;
    Imported& operator=(const Imported&) = delete;
    ~Imported() { release_(managed_); }

    std::uintptr_t data_ptr() const {
        return reinterpret_cast<std::uintptr_t>(view_.data) + view_.byte_offset;
    }
    std::pair<int, int> device() const { return {view_.device.type, view_.device.id}; }
    bool read_only() const { return read_only_; }

    py::tuple shape() const {
        py::tuple shape(static_cast<std::size_t>(view_.ndim));
        for (int i = 0; i < view_.ndim; ++i) shape[static_cast<std::size_t>(i)] = view_.shape[i];
        return shape;
    }

    // The name of safetensors, or nothing where it has no such type.
    py::object dtype() const {
        const auto type = dtype_of(view_.dtype);
        if (!type) return py::none();
        return py::str(std::string(to_string(*type)));
    }

    std::uint64_t nbytes() const {
        std::uint64_t bits = std::uint64_t{view_.dtype.bits} * view_.dtype.lanes;
        for (int i = 0; i < view_.ndim; ++i) bits *= static_cast<std::uint64_t>(view_.shape[i]);
        return (bits + 7) / 8;
    }

    // In C order and without gaps.
    bool contiguous() const {
        if (view_.strides == nullptr || nbytes() == 0) return true;
        std::int64_t expected = 1;
        for (int i = view_.ndim; i-- > 0;) {
            if (view_.shape[i] != 1 && view_.strides[i] != expected) return false;
            expected *= view_.shape[i];
        }
        return true;
    }

private:
    template <typename M>
    bool take(const py::capsule& capsule, const char* name, const char* used) {
        if (PyCapsule_IsValid(capsule.ptr(), name) == 0) return false;
        auto* managed = static_cast<M*>(PyCapsule_GetPointer(capsule.ptr(), name));
        if constexpr (std::is_same_v<M, dlpack::VersionedManaged>) {
            // Of another major version nothing but version and deleter may be read.
            if (managed->version.major != 1)
                raise({ErrorCode::unsupported,
                       "the other library speaks DLPack " + std::to_string(managed->version.major) +
                           ", this one 1",
                       "DLPack",
                       {}});
            read_only_ = (managed->flags & dlpack::read_only) != 0;
        }
        PyCapsule_SetName(capsule.ptr(), used);
        view_ = managed->view;
        managed_ = managed;
        release_ = [](void* held) {
            auto* last = static_cast<M*>(held);
            if (last->deleter != nullptr) last->deleter(last);
        };
        return true;
    }

    dlpack::View view_{};
    bool read_only_ = false;
    void* managed_ = nullptr;
    void (*release_)(void*) = [](void*) {};
};

// The type of a buffer of Python's, or null where safetensors has none. PEP 3118's letters for integers say
// no size on every machine, so the size is asked.
const char* dtype_of_format(const char* format, Py_ssize_t size) {
    std::string letter = format == nullptr ? "B" : format;
    if (!letter.empty() && (letter[0] == '@' || letter[0] == '=' || letter[0] == '<')) letter.erase(0, 1);
    if (letter == "?") return "BOOL";
    if (letter == "Zf") return "C64";
    if (letter.size() != 1) return nullptr;
    const std::string_view floats = "efd";
    if (floats.find(letter[0]) != std::string_view::npos)
        return size == 2 ? "F16" : size == 4 ? "F32" : "F64";
    const std::string_view signed_letters = "bhilqn";
    const std::string_view unsigned_letters = "BHILQNc";
    if (signed_letters.find(letter[0]) != std::string_view::npos)
        return size == 1 ? "I8" : size == 2 ? "I16" : size == 4 ? "I32" : "I64";
    if (unsigned_letters.find(letter[0]) != std::string_view::npos)
        return size == 1 ? "U8" : size == 2 ? "U16" : size == 4 ? "U32" : "U64";
    return nullptr;
}

// Whether a buffer has references to Python's objects: the letter O in its format, outside of the names of fields.
bool holds_objects(const char* format) {
    bool in_name = false;
    for (const char* at = format == nullptr ? "" : format; *at != '\0'; ++at) {
        if (*at == ':') in_name = !in_name;
        if (*at == 'O' && !in_name) return true;
    }
    return false;
}

// Memory that an object shows by Python's buffer protocol; with the GIL, from the first line to the last.
class Borrowed {
public:
    explicit Borrowed(const py::object& object) {
        // Writable where it can be: a read-only one is only a source.
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) !=
            0) {
            PyErr_Clear();
            if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0)
                throw py::error_already_set();
        }
        if (holds_objects(view_.format)) {
            PyBuffer_Release(&view_);
            throw py::type_error("it holds Python objects");
        }
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    ~Borrowed() { PyBuffer_Release(&view_); }

    std::uintptr_t data_ptr() const { return reinterpret_cast<std::uintptr_t>(view_.buf); }
    Py_ssize_t nbytes() const { return view_.len; }
    bool read_only() const { return view_.readonly != 0; }
    py::tuple shape() const {
        py::tuple shape(static_cast<std::size_t>(view_.ndim));
        for (int i = 0; i < view_.ndim; ++i) shape[static_cast<std::size_t>(i)] = view_.shape[i];
        return shape;
    }
    py::object dtype() const {
        const char* name = dtype_of_format(view_.format, view_.itemsize);
        return name == nullptr ? py::none() : py::object(py::str(name));
    }

private:
    Py_buffer view_{};
};

}  // namespace

void define_imported(py::module_& module) {
    py::class_<Imported>(module, "Imported",
                         "What a DLPack capsule holds; given back to its owner with this object.")
        .def(py::init<const py::capsule&>(), py::arg("capsule"))
        .def_property_readonly("data_ptr", &Imported::data_ptr)
        .def_property_readonly("device", &Imported::device)
        .def_property_readonly("read_only", &Imported::read_only)
        .def_property_readonly("shape", &Imported::shape)
        .def_property_readonly("dtype", &Imported::dtype)
        .def_property_readonly("nbytes", &Imported::nbytes)
        .def_property_readonly("contiguous", &Imported::contiguous);
    py::class_<Borrowed>(module, "Borrowed", "Memory that an object shows by Python's buffer protocol.")
        .def(py::init<const py::object&>(), py::arg("object"))
        .def_property_readonly("data_ptr", &Borrowed::data_ptr)
        .def_property_readonly("read_only", &Borrowed::read_only)
        .def_property_readonly("shape", &Borrowed::shape)
        .def_property_readonly("dtype", &Borrowed::dtype)
        .def_property_readonly("nbytes", &Borrowed::nbytes);
}

}  // namespace sidestep::python
