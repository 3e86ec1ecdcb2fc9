#include "context.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <pybind11/stl.h>

#include <sidestep/context.hpp>
#include <sidestep/cuda.hpp>
#include <sidestep/options.hpp>

#include "failure.hpp"
#include "group.hpp"
#include "tensor.hpp"
#include "wait.hpp"

namespace sidestep::python {
namespace {

// What a call gives that may block, made without the GIL.
template <typename Call>
auto without_gil(Call call) {
    const py::gil_scoped_release released;
    return call();
}

// Python's arrays count positions in 63 bits; of an empty tensor the file may say more.
void check_extents(const Checkpoint& checkpoint) {
    for (const TensorInfo& tensor : checkpoint.tensors())
        for (const std::uint64_t extent : tensor.shape)
            if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
                raise({ErrorCode::unsupported,
                       "tensor '" + tensor.name + "' has an axis of " + std::to_string(extent) +
                           ", and arrays have at most 2^63 - 1",
                       "load", "leave it out: only="});
}

// A Transfer or Loading that ends may wait, or free memory: without the GIL too.
template <typename Pending>
class Held {
public:
    explicit Held(Pending pending) : pending_(std::make_unique<Pending>(std::move(pending))) {}
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() {
        const py::gil_scoped_release released;
        pending_.reset();
    }
    Pending& operator*() { return *pending_; }

private:
    std::unique_ptr<Pending> pending_;
};

// An object of Python's, which goes on whichever thread is last: where Python does not know that thread, when its main thread
// runs next. In a child of fork(), and once Python has ended, it stays.
std::shared_ptr<const void> keep_object(py::object kept) {
    return {kept.release().ptr(), [process = getpid()](PyObject* last) {
                if (getpid() != process || Py_IsInitialized() == 0) return;
                const auto let_go = [](void* object) {
                    Py_DECREF(static_cast<PyObject*>(object));
                    return 0;
                };
                if (PyGILState_GetThisThreadState() == nullptr) {
                    Py_AddPendingCall(let_go, last);
                    return;
                }
                const py::gil_scoped_acquire python;
                let_go(last);
            }};
}

Loaded finish_and_drop(Loading loading, const py::object& progress) {
    Held<Loading> held(std::move(loading));
    return finish(*held, progress);
}

// The owners of its buffers stay as long as a device may touch these, also where that is longer than the copy takes to fail.
Receipt finish_and_drop(Transfer transfer, const py::object& progress, const py::object& owners) {
    Held<Transfer> held(std::move(transfer));
    try {
        return finish(*held, progress);
    } catch (...) {
        (*held).keep(keep_object(owners));
        throw;
    }
}

class PyContext {
public:
    PyContext(const std::string& machine, const std::string& nodes, const std::string& key_file,
              bool network_checksums, bool network_encryption) {
        ContextOptions options;
        options.machine = machine;
        options.nodes = nodes;
        options.key_file = key_file;
        options.network_checksums = network_checksums;
        options.network_encryption = network_encryption;
        context_ = keep_context(value(without_gil([&] { return Context::open(options); })));
    }

    const Topology& topology() const { return context().topology(); }

    // For each GPU CUDA's number, -1: hidden from this process. Without, GPUs are taken for emulated ones.
    void set_cuda_numbers(std::map<int, int> numbers) { cuda_numbers_ = std::move(numbers); }

    std::unique_ptr<Held<Serving>> serve(const std::string& listen, const std::string& allow,
                                         const std::string& key_file, const std::string& name,
                                         const std::string& metrics, std::size_t notifications,
                                         Bytes rate) const {
        const ServeOptions options{listen, allow, key_file, name, metrics, notifications, rate};
        return std::make_unique<Held<Serving>>(value(without_gil([&] { return context().serve(options); })));
    }

    void notify(const std::string& node, const py::bytes& text) const {
        const std::string bytes = text;
        value(without_gil([&] { return context().notify(node, bytes); }));
    }

    std::unique_ptr<Held<Publication>> publish(const std::string& name, const Buffer& buffer,
                                               const PublishOptions& options) const {
        return std::make_unique<Held<Publication>>(
            value(without_gil([&] { return context().publish(name, buffer, options); })));
    }

    std::unique_ptr<PyGroup> group(const std::string& id, int rank, int ranks, const std::string& place,
                                   std::optional<double> timeout, const std::string& name) const {
        return join_group(context(), id, rank, ranks, place, timeout, name);
    }

    Route route(const std::string& from, const std::string& to, Bytes bytes,
                const CopyOptions& options) const {
        const Place source = value(Place::parse(from));
        const Place target = value(Place::parse(to));
        return value(without_gil([&] { return context().route(source, target, bytes, options); }));
    }

    Tensor allocate(const std::string& place, Bytes bytes, bool pageable) const {
        const Place at = value(Place::parse(place));
        // Of an empty tensor too there is an address.
        const MemoryKind kind = pageable ? MemoryKind::pageable : MemoryKind::automatic;
        auto memory =
            value(without_gil([&] { return context().allocate(at, std::max<Bytes>(bytes, 1), kind); }));
        const Buffer buffer = memory.buffer().slice(0, bytes);
        return make_tensor(keep(std::move(memory)), buffer, Dtype::u8, "U8",
                           {static_cast<std::int64_t>(bytes)}, device_of(at));
    }

    Receipt copy(const Buffer& from, const Buffer& to, const CopyOptions& options, const py::object& progress,
                 const py::object& owners) const {
        Transfer transfer = without_gil([&] { return context().copy(from, to, options); });
        return finish_and_drop(std::move(transfer), progress, owners);
    }

    Receipt copy_batch(const std::vector<std::pair<Buffer, Buffer>>& items, const CopyOptions& options,
                       const py::object& progress, const py::object& owners) const {
        std::vector<BatchItem> batch;
        batch.reserve(items.size());
        for (const auto& [from, to] : items) batch.push_back({from, to});
        Transfer transfer = without_gil([&] { return context().copy_batch(batch, options); });
        return finish_and_drop(std::move(transfer), progress, owners);
    }

    // {place: {name: Tensor}}, the receipt, and the closing table.
    py::tuple load(const Checkpoint& checkpoint, const LoadOptions& options,
                   const py::object& progress) const {
        check_extents(checkpoint);
        Loading loading = without_gil([&] { return context().load(checkpoint, options); });
        const Loaded loaded = finish_and_drop(std::move(loading), progress);
        const std::shared_ptr<const void> owner = keep(loaded);
        py::dict places;
        for (const Place& place : loaded.places()) {
            py::dict tensors;
            for (const LoadedTensor& tensor : loaded.tensors(place))
                tensors[py::str(tensor.name.data(), tensor.name.size())] =
                    loaded_tensor(owner, tensor, checkpoint);
            places[py::str(place.to_string())] = tensors;
        }
        return py::make_tuple(places, loaded.receipt(), decoded(loaded.report()));
    }

    Receipt save(
        const std::vector<std::tuple<std::string, std::string, std::vector<std::uint64_t>, Buffer>>& tensors,
        const std::string& path, const SaveOptions& options, const py::object& progress,
        const py::object& owners) const {
        std::vector<TensorToSave> list;
        list.reserve(tensors.size());
        for (const auto& [name, type_name, shape, data] : tensors) {
            const auto type = parse_dtype(type_name);
            if (!type)
                raise({ErrorCode::invalid_argument,
                       name + ": safetensors has no type " + type_name,
                       "save",
                       {}});
            list.push_back({name, *type, shape, data});
        }
        Transfer transfer = without_gil([&] { return context().save(list, path, options); });
        return finish_and_drop(std::move(transfer), progress, owners);
    }

    // A buffer over a pointer of CUDA's, of which only CUDA knows what it is.
    Buffer cuda_buffer(std::uintptr_t address, Bytes bytes) const {
        return value(without_gil(
            [&] { return cuda::buffer(context(), reinterpret_cast<const void*>(address), bytes); }));
    }

    py::list backends() const {
        py::list list;
        for (const BackendStatus& status : context().backends())
            list.append(
                py::make_tuple(status.name, status.usable, decoded(status.reason), decoded(status.remedy)));
        return list;
    }

private:
    static std::shared_ptr<const void> keep_context(Context context) { return keep(std::move(context)); }

    const Context& context() const { return *static_cast<const Context*>(context_.get()); }

    dlpack::Device device_of(const Place& place) const {
        if (!place.is_gpu() || cuda_numbers_.empty()) return {dlpack::on_cpu, 0};
        const auto found = cuda_numbers_.find(place.index());
        return {dlpack::on_cuda, found == cuda_numbers_.end() ? -1 : found->second};
    }

    Tensor loaded_tensor(const std::shared_ptr<const void>& owner, const LoadedTensor& loaded,
                         const Checkpoint& checkpoint) const {
        std::string type_name(to_string(loaded.dtype));
        // Only a GGUF file has types without a name of their own.
        if (loaded.dtype == Dtype::other)
            if (const TensorInfo* info = checkpoint.find(loaded.name)) type_name = info->type_name;
        Tensor tensor =
            make_tensor(owner, loaded.buffer, loaded.dtype, std::move(type_name),
                        {loaded.shape.begin(), loaded.shape.end()}, device_of(loaded.buffer.place()));
        tensor.axis = loaded.axis;
        tensor.first = static_cast<std::int64_t>(loaded.first);
        return tensor;
    }

    std::shared_ptr<const void> context_;
    std::map<int, int> cuda_numbers_;  // by GPU
};

// (who, bytes), or None where none comes in that many milliseconds; Ctrl-C ends the wait.
py::object next_notification(Held<Serving>& held, std::int64_t wait) {
    const auto until =
        std::chrono::steady_clock::now() + std::clamp(std::chrono::milliseconds(wait), {}, longest_limit);
    for (;;) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
        auto next = without_gil([&] { return (*held).next_notification(std::min(left, glance)); });
        if (next) return py::make_tuple(decoded(next->from), py::bytes(next->text));
        if (next.error().code != ErrorCode::timed_out) raise(next.error());
        if (left <= left.zero()) return py::none();
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
}

}  // namespace

void define_context(py::module_& module) {
    py::class_<Held<Serving>>(module, "Serving", "Lets others reach this machine until it goes.")
        .def_property_readonly("addresses", [](Held<Serving>& held) { return (*held).addresses(); })
        .def_property_readonly("key_file", [](Held<Serving>& held) { return decoded((*held).key_file()); })
        .def_property_readonly("allowed", [](Held<Serving>& held) { return (*held).allowed(); })
        .def_property_readonly("metrics_addresses",
                               [](Held<Serving>& held) { return (*held).metrics_addresses(); })
        .def("next_notification", &next_notification)
        .def("metrics", [](Held<Serving>& held) { return (*held).metrics(); })
        .def("counts", [](Held<Serving>& held) {
            const ServeCounts counts = (*held).counts();
            return std::tuple(counts.clients, counts.received, counts.sent);
        });
    py::class_<Held<Publication>>(module, "Publication", "Withdraws its name when it goes.");
    py::class_<PyContext>(module, "Context")
        .def(py::init<const std::string&, const std::string&, const std::string&, bool, bool>(),
             py::arg("machine"), py::arg("nodes") = "", py::arg("key_file") = "",
             py::arg("network_checksums") = false, py::arg("network_encryption") = false)
        .def("serve", &PyContext::serve)
        .def("notify", &PyContext::notify)
        .def("publish", &PyContext::publish)
        .def("group", &PyContext::group)
        .def_property_readonly("topology", &PyContext::topology, py::return_value_policy::reference_internal)
        .def("set_cuda_numbers", &PyContext::set_cuda_numbers)
        .def("route", &PyContext::route)
        .def("allocate", &PyContext::allocate, py::arg("place"), py::arg("nbytes"),
             py::arg("pageable") = false)
        .def("copy", &PyContext::copy)
        .def("copy_batch", &PyContext::copy_batch)
        .def("load", &PyContext::load)
        .def("save", &PyContext::save)
        .def("cuda_buffer", &PyContext::cuda_buffer)
        .def("backends", &PyContext::backends);
}

}  // namespace sidestep::python
