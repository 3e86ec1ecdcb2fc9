// The exported functions about communicators.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "shims/nccl/calls.hpp"
#include "shims/nccl/exported.hpp"
#include "shims/nccl/failure.hpp"
#include "shims/nccl/handles.hpp"
#include "shims/nccl/making.hpp"

using namespace sidestep;
using namespace sidestep::nccl;

namespace {

Result<void> check_rank(const ncclComm_t* into, int ranks, int rank) {
    if (into == nullptr) return bad_argument("the address of the new communicator is NULL");
    if (ranks < 1) return bad_argument(fmt::format("a communicator cannot have {} ranks", ranks));
    if (rank >= 0 && rank < ranks) return {};
    return bad_argument(fmt::format("rank {} is out of range: there are {} ranks", rank, ranks));
}

Result<ncclResult_t> init_rank(ncclComm_t* into, int ranks, const ncclUniqueId& id, int rank,
                               const ncclConfig_t* given) {
    if (auto good = check_rank(into, ranks, rank); !good.ok()) return good.error();
    // Another thread may look for the handle already, to abort it.
    __atomic_store_n(into, nullptr, __ATOMIC_RELEASE);
    const auto config = Config::read(given, Config{});
    if (!config.ok()) return config.error();
    const auto group = parse_unique_id(id);
    if (!group.ok()) return group.error();
    const auto machine = context();
    if (!machine.ok()) return machine.error();
    const auto device = current_device(**machine, rank);
    if (!device.ok()) return device.error();
    return join({into, *group, ranks, rank, *config}, *device);
}

Result<ncclResult_t> init_all(ncclComm_t* into, int devices, const int* list) {
    if (into == nullptr || devices < 0)
        return bad_argument("comms is NULL, or the number of devices is negative");
    std::fill_n(into, devices, nullptr);
    const auto machine = context();
    if (!machine.ok()) return machine.error();
    std::vector<Gpu> found;
    std::set<int> numbers;
    for (int i = 0; i < devices; ++i) {
        const int number = list != nullptr ? list[i] : i;
        if (!numbers.insert(number).second) return misuse(fmt::format("device {} is listed twice", number));
        const auto one = device(**machine, number);
        if (!one.ok()) return one.error();
        found.push_back(*one);
    }
    const auto config = Config::read(nullptr, Config{});
    if (!config.ok()) return config.error();
    const auto id = GroupId::create();
    if (!id.ok()) return id.error();
    start_group();
    Result<ncclResult_t> first = ncclSuccess;
    for (int i = 0; i < devices && first.ok(); ++i)
        first = noted(join({into + i, *id, devices, i, *config}, found[static_cast<std::size_t>(i)]));
    const auto ended = end_group();
    return first.ok() ? ended : first;
}

Result<ncclResult_t> split_off(ncclComm_t comm, int color, int key, ncclComm_t* into,
                               const ncclConfig_t* given) {
    auto parent = find(comm);
    if (!parent.ok()) return parent.error();
    if (into == nullptr) return bad_argument("the address of the new communicator is NULL");
    *into = nullptr;
    if (auto ready = (*parent)->ready(); !ready.ok()) return ready.error();
    if ((*parent)->finalized()) return misuse("the communicator was finalized", "destroy it");
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
        return bad_argument(fmt::format("color {} is negative and not NCCL_SPLIT_NOCOLOR", color));
    const auto config = Config::read(given, (*parent)->config());
    if (!config.ok()) return config.error();
    return nccl::split(std::move(*parent), color, key, into, *config);
}

Result<ncclResult_t> shrink_to(ncclComm_t comm, const int* excluded, int count, ncclComm_t* into,
                               const ncclConfig_t* given, int flags) {
    auto parent = find(comm);
    if (!parent.ok()) return parent.error();
    if (into == nullptr || excluded == nullptr) return bad_argument("newcomm or excludeRanksList is NULL");
    *into = nullptr;
    if (count < 1) return bad_argument(fmt::format("{} ranks are excluded: it must be at least 1", count));
    if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT)
        return bad_argument(fmt::format("unknown flags: {:#x}", flags));
    if (auto ready = (*parent)->ready(); !ready.ok()) return ready.error();
    std::set<int> ranks(excluded, excluded + count);
    if (*ranks.begin() < 0 || *ranks.rbegin() >= (*parent)->ranks())
        return bad_argument(
            fmt::format("an excluded rank is out of range: there are {} ranks", (*parent)->ranks()));
    if (ranks.contains((*parent)->rank()))
        return bad_argument(
            fmt::format("rank {} excludes itself: excluded ranks must not call", (*parent)->rank()));
    const auto config = Config::read(given, (*parent)->config());
    if (!config.ok()) return config.error();
    return nccl::shrink(std::move(*parent), {ranks.begin(), ranks.end()}, flags == NCCL_SHRINK_ABORT, into,
                        *config);
}

// A new rank has the id and no communicator; one that is there already has the communicator, from which the
// id follows.
Result<ncclResult_t> grow_to(ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* into,
                             const ncclConfig_t* given) {
    if (comm == nullptr) {
        if (id == nullptr) return bad_argument("a new rank needs the id from ncclCommGetUniqueId");
        return init_rank(into, ranks, *id, rank, given);
    }
    const auto parent = find(comm);
    if (!parent.ok()) return parent.error();
    if (auto ready = (*parent)->ready(); !ready.ok()) return ready.error();
    if ((*parent)->finalized()) return misuse("the communicator was finalized", "destroy it");
    if (rank != -1)
        return bad_argument(
            fmt::format("rank is {}: a rank of the parent keeps its number and passes -1", rank));
    if (auto good = check_rank(into, ranks, (*parent)->rank()); !good.ok()) return good.error();
    *into = nullptr;
    if (ranks <= (*parent)->ranks())
        return bad_argument(
            fmt::format("growing to {} ranks: there are {} already", ranks, (*parent)->ranks()));
    const auto config = Config::read(given, (*parent)->config());
    if (!config.ok()) return config.error();
    if (id != nullptr) {
        const auto named = parse_unique_id(*id);
        if (!named.ok()) return named.error();
        if (named->bytes != (*parent)->next_id().bytes)
            return bad_argument(
                "the id is not the one that ncclCommGetUniqueId returned for this communicator's next "
                "growth");
    }
    return join({into, (*parent)->take_next_id(), ranks, (*parent)->rank(), *config}, (*parent)->device());
}

// A handle for memory. Within a group that is just about to make the communicator it is written at the
// group's end.
Result<ncclResult_t> attach(ncclComm_t comm, void* memory, size_t size, void** handle) {
    auto communicator = find(comm);
    if (!communicator.ok()) return communicator.error();
    if (memory == nullptr || handle == nullptr)
        return bad_argument("the memory or the address of the handle is NULL");
    *handle = nullptr;
    if (size > std::numeric_limits<std::uintptr_t>::max() - reinterpret_cast<std::uintptr_t>(memory))
        return bad_argument(
            fmt::format("{} bytes at {} reach past the end of the address space", size, memory));
    const auto run = [communicator = *communicator, memory, size, handle]() -> Result<void> {
        auto made = communicator->add_registration(memory, size);
        if (!made.ok()) return made.error();
        *handle = *made;
        return {};
    };
    if (!(*communicator)->ready().ok() && waits_in_group(communicator->get()))
        return submit(Job{communicator->get(), (*communicator)->config().blocking, run});
    if (auto ready = (*communicator)->ready(); !ready.ok()) return ready.error();
    if (auto done = run(); !done.ok()) return done.error();
    return ncclSuccess;
}

Result<ncclResult_t> detach(ncclComm_t comm, void* handle) {
    // Programs abort a communicator before they take back its registrations, which went with it.
    if (is_destroyed(comm) || handle == nullptr) return ncclSuccess;
    const auto communicator = find(comm);
    if (!communicator.ok()) return communicator.error();
    if (auto removed = (*communicator)->remove_registration(handle); !removed.ok()) return removed.error();
    return ncclSuccess;
}

// Never freed, yet reachable, so that it counts as no leak.
void leave_to_the_end(std::shared_ptr<Communicator> communicator) {
    static std::mutex& mutex = *new std::mutex;
    static auto& kept = *new std::vector<std::shared_ptr<Communicator>>;
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(communicator));
}

ncclResult_t let_go(const char* name, ncclComm_t comm, bool abort) noexcept {
    return answer(name, [&]() -> Result<ncclResult_t> {
        if (comm == nullptr) return ncclSuccess;
        auto communicator = take(comm);
        if (!communicator.ok()) return communicator.error();
        if (ending()) {
            leave_to_the_end(std::move(*communicator));
            return ncclSuccess;
        }
        // One that is still being made has nobody who would wait for it.
        if (abort || (*communicator)->state().first == ncclInProgress) (*communicator)->abort(name);
        release(std::move(*communicator));
        return ncclSuccess;
    });
}

// For the questions that have a number as their answer.
ncclResult_t ask(const char* name, ncclComm_t comm, int* into,
                 int (*question)(const Communicator&)) noexcept {
    return answer(name, [&]() -> Result<ncclResult_t> {
        const auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        if (into == nullptr) return bad_argument("the address to write to is NULL");
        *into = question(**communicator);
        return ncclSuccess;
    });
}

}  // namespace

extern "C" {

ncclResult_t pncclGetUniqueId(ncclUniqueId* id) {
    return answer("ncclGetUniqueId", [&]() -> Result<ncclResult_t> {
        if (id == nullptr) return bad_argument("the address of the id is NULL");
        auto made = make_unique_id();
        if (!made.ok()) return made.error();
        *id = *made;
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(GetUniqueId);

ncclResult_t pncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
    return answer("ncclCommInitRank", [&] { return noted(init_rank(comm, ranks, id, rank, nullptr)); });
}
SIDESTEP_NCCL_ALSO(CommInitRank);

ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                     ncclConfig_t* config) {
    return answer("ncclCommInitRankConfig", [&] { return noted(init_rank(comm, ranks, id, rank, config)); });
}
SIDESTEP_NCCL_ALSO(CommInitRankConfig);

// Several ids spread the work of meeting over several machines. Here the first one will do.
ncclResult_t pncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int id_count, ncclUniqueId* ids,
                                       ncclConfig_t* config) {
    return answer("ncclCommInitRankScalable", [&]() -> Result<ncclResult_t> {
        if (ids == nullptr || id_count < 1 || id_count > ranks)
            return noted(bad_argument(
                ids == nullptr
                    ? "the ids are NULL"
                    : fmt::format("{} ids for {} ranks: there may be 1 to {}", id_count, ranks, ranks)));
        return noted(init_rank(comm, ranks, ids[0], rank, config));
    });
}
SIDESTEP_NCCL_ALSO(CommInitRankScalable);

ncclResult_t pncclCommInitAll(ncclComm_t* comms, int devices, const int* device_list) {
    return answer("ncclCommInitAll", [&] { return noted(init_all(comms, devices, device_list)); });
}
SIDESTEP_NCCL_ALSO(CommInitAll);

ncclResult_t pncclCommFinalize(ncclComm_t comm) {
    return answer("ncclCommFinalize", [&]() -> Result<ncclResult_t> {
        if (comm == nullptr) return ncclSuccess;  // as NCCL has it, here and below
        auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        if ((*communicator)->finalized()) return bad_argument("the communicator was finalized");
        if (auto usable = (*communicator)->usable(); !usable.ok()) return usable.error();
        return nccl::finalize(std::move(*communicator));
    });
}
SIDESTEP_NCCL_ALSO(CommFinalize);

ncclResult_t pncclCommDestroy(ncclComm_t comm) {
    return let_go("ncclCommDestroy", comm, false);
}
SIDESTEP_NCCL_ALSO(CommDestroy);

ncclResult_t pncclCommAbort(ncclComm_t comm) {
    return let_go("ncclCommAbort", comm, true);
}
SIDESTEP_NCCL_ALSO(CommAbort);

ncclResult_t pncclCommRevoke(ncclComm_t comm, int flags) {
    return answer("ncclCommRevoke", [&]() -> Result<ncclResult_t> {
        if (comm == nullptr) return ncclSuccess;
        const auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        if (flags != NCCL_REVOKE_DEFAULT) return bad_argument(fmt::format("unknown flags: {:#x}", flags));
        if (auto usable = (*communicator)->usable(); !usable.ok()) return usable.error();
        (*communicator)->revoke();
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(CommRevoke);

ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* new_comm, ncclConfig_t* config) {
    return answer("ncclCommSplit", [&] { return noted(split_off(comm, color, key, new_comm, config)); });
}
SIDESTEP_NCCL_ALSO(CommSplit);

ncclResult_t pncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* new_comm,
                             ncclConfig_t* config, int flags) {
    return answer("ncclCommShrink",
                  [&] { return noted(shrink_to(comm, excluded, excluded_count, new_comm, config, flags)); });
}
SIDESTEP_NCCL_ALSO(CommShrink);

ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
    return answer("ncclCommGetUniqueId", [&]() -> Result<ncclResult_t> {
        const auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        if (id == nullptr) return bad_argument("the address of the id is NULL");
        if (auto ready = (*communicator)->ready(); !ready.ok()) return ready.error();
        *id = unique_id_of((*communicator)->next_id());
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(CommGetUniqueId);

ncclResult_t pncclCommGrow(ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* new_comm,
                           ncclConfig_t* config) {
    return answer("ncclCommGrow", [&] { return noted(grow_to(comm, ranks, id, rank, new_comm, config)); });
}
SIDESTEP_NCCL_ALSO(CommGrow);

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
    return answer("ncclCommGetAsyncError", [&]() -> Result<ncclResult_t> {
        const auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        if (error == nullptr) return bad_argument("the address to write to is NULL");
        const auto [number, what] = (*communicator)->state();
        // For a program that asks ncclGetLastError without naming the communicator.
        if (number != ncclSuccess && number != ncclInProgress)
            fail(fmt::format("rank {} of {}", (*communicator)->rank(), (*communicator)->ranks()).c_str(),
                 what);
        *error = number;
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(CommGetAsyncError);

ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
    return ask("ncclCommCount", comm, count, [](const Communicator& c) { return c.ranks(); });
}
SIDESTEP_NCCL_ALSO(CommCount);

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device) {
    return ask("ncclCommCuDevice", comm, device, [](const Communicator& c) { return c.device().number; });
}
SIDESTEP_NCCL_ALSO(CommCuDevice);

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
    return ask("ncclCommUserRank", comm, rank, [](const Communicator& c) { return c.rank(); });
}
SIDESTEP_NCCL_ALSO(CommUserRank);

ncclResult_t pncclCommRegister(const ncclComm_t comm, void* memory, size_t size, void** handle) {
    return answer("ncclCommRegister", [&] { return noted(attach(comm, memory, size, handle)); });
}
SIDESTEP_NCCL_ALSO(CommRegister);

ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle) {
    return answer("ncclCommDeregister", [&] { return noted(detach(comm, handle)); });
}
SIDESTEP_NCCL_ALSO(CommDeregister);

ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* memory, size_t size, ncclWindow_t* window,
                                     int flags) {
    return answer("ncclCommWindowRegister", [&]() -> Result<ncclResult_t> {
        if ((flags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)) != 0)
            return noted(bad_argument(fmt::format("unknown flags: {:#x}", flags)));
        if (memory != nullptr) return noted(attach(comm, memory, size, reinterpret_cast<void**>(window)));
        // No memory, no window: NCCL 2.28 has it so, 2.30 refuses it.
        if (const auto communicator = find(comm); !communicator.ok()) return noted(communicator.error());
        if (window != nullptr) *window = nullptr;
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(CommWindowRegister);

ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
    return answer("ncclCommWindowDeregister", [&] { return noted(detach(comm, window)); });
}
SIDESTEP_NCCL_ALSO(CommWindowDeregister);
}
