#include "group.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <semaphore>
#include <stop_token>
#include <thread>
#include <utility>

#include "failure.hpp"
#include "values.hpp"
#include "wait.hpp"

namespace sidestep::python {

namespace {

constexpr std::array reductions = {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max,
                                   ReduceOp::avg};

Reduction reduction_of(const std::string& word) {
    for (const ReduceOp op : reductions)
        if (word == to_string(op)) return Reduction::of(op);
    raise({ErrorCode::invalid_argument, "there is no '" + word + "'", "op",
           "the words are sum, prod, min, max, avg"});
}

Dtype dtype_named(const std::string& name) {
    if (const auto type = parse_dtype(name)) return *type;
    raise({ErrorCode::unsupported, "collectives have no type '" + name + "'", "dtype", {}});
}

struct Call {
    std::string operation;
    const void* from;
    void* to;
    std::size_t count;
    Dtype dtype;
    Reduction reduction;
    int peer;  // the root, or the other rank
    CUstream_st* stream;
};

Result<void> enqueue(Group& group, const Call& call) {
    const auto& [operation, from, to, count, dtype, reduction, peer, stream] = call;
    if (operation == "all_reduce") return group.all_reduce(from, to, count, dtype, reduction, stream);
    if (operation == "broadcast") return group.broadcast(from, to, count, dtype, peer, stream);
    if (operation == "reduce") return group.reduce(from, to, count, dtype, reduction, peer, stream);
    if (operation == "all_gather") return group.all_gather(from, to, count, dtype, stream);
    if (operation == "reduce_scatter") return group.reduce_scatter(from, to, count, dtype, reduction, stream);
    if (operation == "all_to_all") return group.all_to_all(from, to, count, dtype, stream);
    if (operation == "send") return group.send(from, count, dtype, peer, stream);
    if (operation == "recv") return group.recv(to, count, dtype, peer, stream);
    return group.barrier(stream);
}

void check(const Result<void>& result) {
    if (!result) raise(result.error());
}

// Group::join on a thread of its own. This one looks for signals meanwhile: a KeyboardInterrupt ends the wait for the
// other ranks.
Result<Group> join_interruptibly(const Context& context, const Seating& seating,
                                 const GroupOptions& options) {
    std::stop_source stop;
    std::optional<Result<Group>> joined;
    std::binary_semaphore ended{0};
    std::jthread thread([&] {
        joined = Group::join(context, seating, options, stop.get_token());
        ended.release();
    });
    for (bool over = false; !over;) {
        if (PyErr_CheckSignals() != 0) {
            const py::gil_scoped_release released;
            stop.request_stop();
            thread.join();
            joined.reset();  // leaves, where all had come
            over = true;
        } else {
            const py::gil_scoped_release released;
            over = ended.try_acquire_for(glance);
        }
    }
    if (!joined) throw py::error_already_set();
    return std::move(*joined);
}

}  // namespace

std::unique_ptr<PyGroup> join_group(const Context& context, const std::string& id, int rank, int ranks,
                                    const std::string& place, std::optional<double> timeout,
                                    const std::string& name) {
    Seating seating;
    if (id.empty()) {
        seating = value(Seating::from_environment());
    } else {
        seating.id = value(GroupId::parse(id));
        seating.rank = rank;
        seating.ranks = ranks;
    }
    if (!place.empty()) seating.place = value(Place::parse(place));
    GroupOptions options;
    options.name = name;
    if (timeout) options.timeout = milliseconds_of("timeout", *timeout);
    return std::make_unique<PyGroup>(value(join_interruptibly(context, seating, options)));
}

void define_group(py::module_& module) {
    module.def("new_group_id", [] { return value(GroupId::create()).to_string(); });
    py::class_<PyGroup>(module, "Group")
        .def_property_readonly("rank", [](const PyGroup& group) { return group->rank(); })
        .def_property_readonly("ranks", [](const PyGroup& group) { return group->ranks(); })
        .def_property_readonly("place", [](const PyGroup& group) { return group->place().to_string(); })
        .def_property_readonly("id", [](const PyGroup& group) { return group->id().to_string(); })
        .def("enqueue",
             [](const PyGroup& group, const std::string& operation, std::uintptr_t from, std::uintptr_t to,
                std::size_t count, const std::string& dtype, const std::string& op, int peer,
                std::uintptr_t stream) {
                 const Call call{operation,
                                 reinterpret_cast<const void*>(from),
                                 reinterpret_cast<void*>(to),
                                 count,
                                 dtype_named(dtype),
                                 reduction_of(op),
                                 peer,
                                 reinterpret_cast<CUstream_st*>(stream)};
                 const auto done = [&] {
                     const py::gil_scoped_release released;
                     return enqueue(*group, call);
                 }();
                 check(done);
             })
        .def("idle", [](const PyGroup& group) { return value(group->idle()); })
        .def("wait",
             [](const PyGroup& group) {
                 const auto done = [&] {
                     const py::gil_scoped_release released;
                     return group->wait();
                 }();
                 check(done);
             })
        .def("abort", [](const PyGroup& group, const std::string& why) { group->abort(why); });
}

}  // namespace sidestep::python
