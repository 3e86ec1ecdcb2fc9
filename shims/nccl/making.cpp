#include "shims/nccl/making.hpp"

#include <algorithm>
#include <cstring>

#include "shims/nccl/calls.hpp"
#include "shims/nccl/failure.hpp"
#include "shims/nccl/handles.hpp"
#include "shims/nccl/memory.hpp"

namespace sidestep::nccl {
namespace {

constexpr char id_mark[] = "sidestep group";  // and its 0

// Callers ask in a loop whether a handle is there yet.
void put(ncclComm_t* into, ncclComm_t handle) {
    __atomic_store_n(into, handle, __ATOMIC_RELEASE);
}

// A communicator around a group that another one has made.
Result<ncclComm_t> adopt(const Communicator& parent, const Config& config, Group group) {
    const auto child = std::make_shared<Communicator>(parent.device(), config, group.rank(), group.ranks());
    // Who aborts the parent ends this too.
    const std::stop_callback passed_on(parent.stop(),
                                       [&child] { child->abort("ncclCommAbort of the parent"); });
    if (auto made = child->set_group(std::move(group)); !made.ok()) return made.error();
    attach_memory(*child);
    return make_handle(child);
}

// A job about `parent`. It goes on in the background where the parent does not block, as in NCCL whatever its child does; the
// parent's state tells how it ended.
Job about(const std::shared_ptr<Communicator>& parent, std::function<Result<void>()> run) {
    Job job{parent.get(), parent->config().blocking, std::move(run)};
    if (!job.blocking) job.busy = parent;
    return job;
}

}  // namespace

Result<ncclUniqueId> make_unique_id() {
    const auto id = GroupId::create();
    if (!id.ok()) return id.error();
    return unique_id_of(*id);
}

ncclUniqueId unique_id_of(const GroupId& id) {
    ncclUniqueId made{};
    std::memcpy(made.internal, id_mark, sizeof id_mark);
    std::memcpy(made.internal + sizeof id_mark, id.bytes.data(), id.bytes.size());
    return made;
}

Result<GroupId> parse_unique_id(const ncclUniqueId& id) {
    if (std::memcmp(id.internal, id_mark, sizeof id_mark) != 0)
        return Error{ErrorCode::invalid_argument,
                     "the id was not made by this library's ncclGetUniqueId",
                     {},
                     "every rank must load the same libnccl.so.2"};
    GroupId parsed;
    std::memcpy(parsed.bytes.data(), id.internal + sizeof id_mark, parsed.bytes.size());
    return parsed;
}

Result<ncclResult_t> join(const Joining& joining, const Gpu& device) {
    announce();
    const auto machine = context();
    if (!machine.ok()) return machine.error();
    const auto communicator =
        std::make_shared<Communicator>(device, joining.config, joining.rank, joining.ranks);
    const ncclComm_t handle = make_handle(communicator);
    put(joining.into, handle);
    if (device.emulated)
        if (auto set = set_emulated_device(**machine, device.number, false); !set.ok()) return set.error();

    Job job{communicator.get(), joining.config.blocking, {}};
    job.run = [=, context = *machine]() -> Result<void> {
        auto group = Group::join(*context, {joining.id, joining.rank, joining.ranks, device.place},
                                 joining.config.options(), communicator->stop());
        if (!group.ok()) return group.error();
        if (auto made = communicator->set_group(std::move(*group)); !made.ok()) return made;
        attach_memory(*communicator);
        return {};
    };
    job.failed = [=](const Error& error) {
        communicator->set_failure(error);
        // The caller of a call that does not block asks the communicator how it ended.
        if (!joining.config.blocking) return;
        static_cast<void>(take(handle));
        put(joining.into, nullptr);
    };
    return submit(std::move(job));
}

Result<ncclResult_t> split(std::shared_ptr<Communicator> parent, int color, int key, ncclComm_t* into,
                           const Config& config) {
    return submit(about(parent, [=]() -> Result<void> {
        auto group = parent->split(color, key, config.options());
        if (!group.ok()) return group.error();
        if (!group->has_value()) return {};
        auto child = adopt(*parent, config, std::move(**group));
        if (!child.ok()) return child.error();
        put(into, *child);
        return {};
    }));
}

Result<ncclResult_t> shrink(std::shared_ptr<Communicator> parent, std::vector<int> excluded, bool abort_first,
                            ncclComm_t* into, const Config& config) {
    return submit(about(parent, [=]() -> Result<void> {
        auto group = parent->shrink(excluded, abort_first, config.options());
        if (!group.ok()) return group.error();
        auto child = adopt(*parent, config, std::move(*group));
        if (!child.ok()) return child.error();
        put(into, *child);
        return {};
    }));
}

Result<ncclResult_t> finalize(std::shared_ptr<Communicator> communicator) {
    return submit(about(communicator, [communicator]() -> Result<void> { return communicator->finalize(); }));
}

}  // namespace sidestep::nccl
