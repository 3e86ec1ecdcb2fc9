#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include <sidestep/checkpoint.hpp>

#include "context.hpp"
#include "failure.hpp"

namespace sidestep::python {
namespace {

Checkpoint open(const std::vector<std::string>& paths, const CheckpointOptions& options) {
    auto opened = [&] {
        const py::gil_scoped_release without_gil;
        return Checkpoint::open(paths, options);
    }();
    return value(std::move(opened));
}

// A copy, so that Python may keep it longer than the checkpoint.
py::object find(const Checkpoint& checkpoint, const std::string& name) {
    const TensorInfo* info = checkpoint.find(name);
    return info == nullptr ? py::none() : py::cast(*info);
}

std::vector<std::string> names(const Checkpoint& checkpoint) {
    std::vector<std::string> list;
    list.reserve(checkpoint.tensors().size());
    for (const TensorInfo& tensor : checkpoint.tensors()) list.push_back(tensor.name);
    return list;
}

// The paths. A path is bytes: it need be no UTF-8.
std::vector<py::bytes> files(const Checkpoint& checkpoint) {
    std::vector<py::bytes> list;
    for (const CheckpointFile& file : checkpoint.files()) list.emplace_back(file.path);
    return list;
}

// The types that occur, each once.
std::set<std::string> dtypes(const Checkpoint& checkpoint) {
    std::set<std::string> found;
    for (const TensorInfo& tensor : checkpoint.tensors()) found.insert(tensor.type_name);
    return found;
}

// Of the tensor that has most.
std::size_t most_axes(const Checkpoint& checkpoint) {
    std::size_t most = 0;
    for (const TensorInfo& tensor : checkpoint.tensors()) most = std::max(most, tensor.shape.size());
    return most;
}

py::tuple info_shape(const TensorInfo& info) {
    py::tuple shape(info.shape.size());
    for (std::size_t i = 0; i < info.shape.size(); ++i) shape[i] = info.shape[i];
    return shape;
}

}  // namespace

void define_checkpoint(py::module_& module) {
    py::class_<TensorInfo>(module, "TensorInfo", "One tensor of a checkpoint, without its data.")
        .def_readonly("name", &TensorInfo::name)
        .def_readonly("dtype", &TensorInfo::type_name, "As the file spells it: 'BF16'; of GGUF 'Q4_K'.")
        .def_property_readonly("shape", info_shape, "A tuple of ints; () for a scalar.")
        .def_readonly("file", &TensorInfo::file, "Position in the list of files.")
        .def_readonly("offset", &TensorInfo::offset, "Of the first byte in that file.")
        .def_readonly("nbytes", &TensorInfo::bytes)
        .def_property_readonly(
            "bits", [](const TensorInfo& info) { return bits_of(info.dtype); },
            "Of one element; 0: a type of GGUF's own.")
        .def("__repr__", [](const TensorInfo& info) {
            return "TensorInfo('" + info.name + "', " + info.type_name + ")";
        });
    py::class_<Checkpoint>(module, "Checkpoint")
        .def_static("open", open, py::arg("paths"), py::arg("options") = CheckpointOptions())
        .def("only",
             [](const Checkpoint& checkpoint, const std::vector<std::string>& patterns) {
                 return value(checkpoint.only(patterns));
             })
        .def("find", find)
        .def_property_readonly("names", names)
        .def_property_readonly("dtypes", dtypes)
        .def_property_readonly("most_axes", most_axes)
        .def_property_readonly("tensors", [](const Checkpoint& checkpoint) { return checkpoint.tensors(); })
        .def_property_readonly("files", files)
        .def("check_file",
             [](const Checkpoint& checkpoint, std::size_t file) {
                 value([&] {
                     const py::gil_scoped_release without_gil;
                     return checkpoint.check_file(file);
                 }());
             })
        .def_property_readonly("metadata", [](const Checkpoint& checkpoint) { return checkpoint.metadata(); })
        .def_property_readonly("notes",
                               [](const Checkpoint& checkpoint) { return decoded(checkpoint.notes()); })
        .def_property_readonly("nbytes", &Checkpoint::bytes)
        .def("summary", [](const Checkpoint& checkpoint) { return decoded(checkpoint.summary()); })
        .def("to_text", [](const Checkpoint& checkpoint) { return decoded(checkpoint.to_text()); })
        .def("to_json", [](const Checkpoint& checkpoint) { return decoded(checkpoint.to_json()); })
        .def("__len__", [](const Checkpoint& checkpoint) { return checkpoint.tensors().size(); });
}

}  // namespace sidestep::python
