#include "values.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <pybind11/stl.h>

#include <sidestep/buffer.hpp>
#include <sidestep/doctor.hpp>
#include <sidestep/drawing.hpp>
#include <sidestep/receipt.hpp>
#include <sidestep/route.hpp>
#include <sidestep/topology.hpp>
#include <sidestep/units.hpp>

#include "failure.hpp"

namespace sidestep::python {
namespace {

Buffer memory(const std::string& place, std::uintptr_t address, Bytes bytes, bool read_only) {
    const Place at = value(Place::parse(place));
    void* pointer = reinterpret_cast<void*>(address);
    if (!at.is_host() && !at.is_gpu())
        raise({ErrorCode::invalid_argument, place + " has no addresses", "Buffer.memory", {}});
    if (read_only && at.is_host()) return Buffer::host(static_cast<const void*>(pointer), bytes);
    if (read_only) return Buffer::gpu(at.index(), static_cast<const void*>(pointer), bytes);
    return Buffer::memory(at, pointer, bytes);
}

void define_buffer(py::module_& module) {
    py::class_<Buffer>(module, "Buffer", "Bytes at a place. Refers, does not own.")
        .def_static("memory", memory, py::arg("place"), py::arg("address"), py::arg("nbytes"),
                    py::arg("read_only") = false)
        .def_static(
            "file", [](const std::string& path) { return Buffer::file(path); }, py::arg("path"))
        .def_static(
            "file_part",
            [](const std::string& path, Bytes offset, Bytes bytes) {
                return Buffer::file(path, offset, bytes);
            },
            py::arg("path"), py::arg("offset"), py::arg("nbytes"))
        .def_static(
            "shared", [](const std::string& name) { return Buffer::shared(name); }, py::arg("name"))
        .def_static(
            "shared_part",
            [](const std::string& name, Bytes offset, Bytes bytes) {
                return Buffer::shared(name, offset, bytes);
            },
            py::arg("name"), py::arg("offset"), py::arg("nbytes"))
        .def("on", &Buffer::on, py::arg("node"))
        .def_property_readonly("place",
                               [](const Buffer& buffer) { return decoded(buffer.place().to_string()); })
        .def_property_readonly("size",
                               [](const Buffer& buffer) -> py::object {
                                   if (buffer.size() == Buffer::whole) return py::none();
                                   return py::int_(buffer.size());
                               })
        .def("__repr__", [](const Buffer& buffer) { return decoded("<" + buffer.to_string() + ">"); });
}

// "<Topology: machine dgx-h100 (emulated): 8 GPUs>": the first line of what str() prints.
py::str shown(const char* type, const std::string& text) {
    return decoded("<" + std::string(type) + ": " + text.substr(0, text.find('\n')) + ">");
}

Theme theme_of(const std::string& word) {
    if (word == "automatic") return Theme::automatic;
    if (word == "light") return Theme::light;
    if (word == "dark") return Theme::dark;
    raise({ErrorCode::invalid_argument, "there is no '" + word + "'", "theme",
           "the words are automatic, light, dark"});
}

void define_route(py::module_& module) {
    py::class_<Route>(module, "Route",
                      "The way bytes take, and the ways that were refused with the reasons. str() prints it.")
        .def_property_readonly("direct", &Route::direct, "Whether no lane has staging memory in between.")
        .def_readonly("bytes", &Route::bytes, "That the prices were made for.")
        .def_readonly("emulated", &Route::emulated, "Whether the rates are those of a modelled machine.")
        .def_readonly("expected_gb_per_s", &Route::expected_gb_per_s, "GB/s, 1 GB = 10^9 bytes.")
        .def_readonly("expected_seconds", &Route::expected_seconds, "Seconds.")
        .def(
            "to_json", [](const Route& route) { return decoded(route.to_json()); },
            "The object documented in docs/json.md, as text.")
        .def("__repr__", [](const Route& route) { return shown("Route", route.to_string()); })
        .def("__str__", [](const Route& route) { return decoded(route.to_string()); });
}

void define_receipt(py::module_& module) {
    py::class_<StorageBytes>(module, "StorageBytes", "How bytes went to or from storage.")
        .def_readonly("gpu_direct", &StorageBytes::gpu_direct,
                      "Bytes between storage and GPU, none in host memory.")
        .def_readonly("o_direct", &StorageBytes::o_direct, "Bytes around the page cache.")
        .def_readonly("page_cache", &StorageBytes::page_cache, "Bytes through the page cache.")
        .def_readonly("misses", &StorageBytes::misses, "Of page_cache, a read's: bytes that it did not hold.")
        .def_property_readonly("total", &StorageBytes::total)
        .def("__repr__", [](const StorageBytes& bytes) {
            return "StorageBytes(gpu_direct=" + std::to_string(bytes.gpu_direct) +
                   ", o_direct=" + std::to_string(bytes.o_direct) +
                   ", page_cache=" + std::to_string(bytes.page_cache) +
                   ", misses=" + std::to_string(bytes.misses) + ")";
        });
    py::class_<Stage>(module, "Stage", "What one stage of a load or a save did.")
        .def_readonly("name", &Stage::name, "'read', 'host to GPU', ...")
        .def_readonly("bytes", &Stage::bytes)
        .def_readonly("busy_seconds", &Stage::busy_seconds, "While at least one piece of it was in flight.")
        .def_readonly("limit_seconds", &Stage::limit_seconds,
                      "While the other stages could only wait for it.")
        .def_property_readonly("gb_per_s", &Stage::gb_per_s);
    py::class_<Receipt>(module, "Receipt", "What a finished copy, load or save did. str() is one line.")
        .def_readonly("bytes", &Receipt::bytes, "Bytes that arrived.")
        .def_readonly("seconds", &Receipt::seconds, "Seconds, verification left out.")
        .def_property_readonly("gb_per_s", &Receipt::gb_per_s, "GB/s, 1 GB = 10^9 bytes.")
        .def_readonly("lane_bytes", &Receipt::lane_bytes, "Bytes of each lane of the route.")
        .def_property_readonly(
            "lane_failures", [](const Receipt& receipt) { return decoded(receipt.lane_failures); },
            "Why a lane stopped; '' where it did not.")
        .def_readonly("verified", &Receipt::verified, "Whether both ends were compared and are equal.")
        .def_readonly("verify_seconds", &Receipt::verify_seconds)
        .def_readonly("storage", &Receipt::storage, "Bytes by the way they went to or from files.")
        .def_readonly("stages", &Receipt::stages,
                      "Of a load or a save, in the order in which bytes pass them.")
        .def_property_readonly(
            "notes", [](const Receipt& receipt) { return decoded(receipt.notes); },
            "What went otherwise than asked, in sentences.")
        .def_property_readonly(
            "route",
            [](const Receipt& receipt) -> py::object {
                return receipt.route ? py::cast(*receipt.route) : py::none();
            },
            "The Route that carried the bytes.")
        .def("share_of_expected", &Receipt::share_of_expected,
             "Rate as a share of the expected one; 0 on emulated machines.")
        .def(
            "summary", [](const Receipt& receipt) { return decoded(receipt.summary()); }, "One line.")
        .def(
            "explain", [](const Receipt& receipt) { return decoded(receipt.explain()); },
            "The path hop by hop, and the better paths refused, with reasons.")
        .def(
            "to_json", [](const Receipt& receipt) { return decoded(receipt.to_json()); },
            "The object documented in docs/json.md, as text.")
        .def("__repr__", [](const Receipt& receipt) { return shown("Receipt", receipt.summary()); })
        .def("__str__", [](const Receipt& receipt) { return decoded(receipt.summary()); });
}

void define_diagnosis(py::module_& module) {
    py::class_<Diagnosis>(module, "Diagnosis", "What the doctor found. str() prints the report.")
        .def_property_readonly("machine",
                               [](const Diagnosis& diagnosis) { return decoded(diagnosis.machine); })
        .def_property_readonly(
            "failures", [](const Diagnosis& diagnosis) { return diagnosis.count(Verdict::fail); },
            "How many checks found something broken.")
        .def_property_readonly(
            "warnings", [](const Diagnosis& diagnosis) { return diagnosis.count(Verdict::warn); },
            "How many found a faster path that is off, or may be.")
        .def(
            "to_json", [](const Diagnosis& diagnosis) { return decoded(diagnosis.to_json()); },
            "The object documented in docs/json.md, as text.")
        .def("__repr__", [](const Diagnosis& diagnosis) { return shown("Diagnosis", diagnosis.to_string()); })
        .def("__str__", [](const Diagnosis& diagnosis) { return decoded(diagnosis.to_string()); });
    module.def(
        "doctor",
        [](const std::string& machine) {
            auto found = [&machine] {
                const py::gil_scoped_release without_gil;
                DoctorOptions options;
                options.machine = machine;
                return run_doctor(options);
            }();
            return value(std::move(found));
        },
        py::arg("machine"));
}

void define_topology(py::module_& module) {
    py::class_<Topology>(module, "Topology",
                         "What a machine is made of: an immutable snapshot. str() prints the whole machine.")
        .def_static(
            "open",
            [](const std::string& machine) {
                auto opened = [&machine] {
                    const py::gil_scoped_release without_gil;
                    return Topology::open(machine);
                }();
                return value(std::move(opened));
            },
            py::arg("machine"))
        .def_property_readonly(
            "name", [](const Topology& topology) { return decoded(topology.name()); },
            "'live', or the model's name.")
        .def_property_readonly("emulated", &Topology::emulated,
                               "Whether it is a model or a file, not this machine.")
        .def_property_readonly("gpu_count", &Topology::gpu_count)
        .def_property_readonly(
            "gpu_bus_ids",
            [](const Topology& topology) {
                std::map<int, std::string> ids;
                for (const Device& device : topology.devices())
                    if (device.kind == DeviceKind::gpu) ids.emplace(device.index, device.bus_id);
                return ids;
            },
            "The PCI bus ids of the GPUs, by their numbers, which may have gaps.")
        .def_property_readonly(
            "notes", [](const Topology& topology) { return decoded(topology.notes()); },
            "What could not be read, and why.")
        .def(
            "to_json", [](const Topology& topology) { return decoded(topology.to_json()); },
            "The format of docs/topology-format.md, as text.")
        .def(
            "svg",
            [](const Topology& topology, const std::string& theme, int node) {
                if (node != 0 && std::none_of(topology.devices().begin(), topology.devices().end(),
                                              [&](const Device& device) { return device.node == node; }))
                    raise({ErrorCode::not_found,
                           "there is no node" + std::to_string(node) + " in this machine",
                           "svg",
                           {}});
                return decoded(draw_svg(topology, {theme_of(theme), node}));
            },
            py::arg("theme") = "automatic", py::arg("node") = 0,
            "The machine drawn, as an SVG document that stands alone; of a cluster machine `node` in full.")
        // Notebooks show it.
        .def("_repr_svg_", [](const Topology& topology) { return decoded(draw_svg(topology)); })
        .def("__repr__", [](const Topology& topology) { return shown("Topology", topology.to_text()); })
        .def("__str__", [](const Topology& topology) { return decoded(topology.to_text()); });
}

}  // namespace

void define_values(py::module_& module) {
    module.def(
        "parse_bytes",
        [](const std::string& text) -> py::object {
            const auto bytes = parse_bytes(text);
            return bytes ? py::object(py::int_(*bytes)) : py::none();
        },
        "'1.5 GiB' as bytes; None for what is not a size.");
    define_buffer(module);
    define_route(module);
    define_receipt(module);
    define_topology(module);
    define_diagnosis(module);
}

}  // namespace sidestep::python
