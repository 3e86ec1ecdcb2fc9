#include "shims/nccl/handles.hpp"

#include <cstdint>
#include <mutex>
#include <set>

#include "shims/nccl/failure.hpp"

// What a caller's pointer points to. Never freed.
struct ncclComm {
    static constexpr std::uint64_t whole = 0x7065747365646973;  // "sidestep"
    std::uint64_t mark = whole;
    std::mutex lock;
    std::shared_ptr<sidestep::nccl::Communicator> communicator;  // null: destroyed
};

namespace sidestep::nccl {
namespace {

struct Handles {
    std::mutex lock;
    std::vector<ncclComm*> all;
    std::set<ncclComm*> living;
};
Handles& handles() {
    static auto& one = *new Handles;
    return one;
}

Result<void> check(ncclComm_t handle) {
    if (handle == nullptr) return bad_argument("the communicator is NULL");
    if (reinterpret_cast<std::uintptr_t>(handle) % alignof(ncclComm) != 0 || handle->mark != ncclComm::whole)
        return bad_argument("not a communicator created by this library");
    return {};
}

}  // namespace

ncclComm_t make_handle(std::shared_ptr<Communicator> communicator) {
    auto made = std::make_unique<ncclComm>();
    made->communicator = std::move(communicator);
    const std::lock_guard guard(handles().lock);
    handles().all.reserve(handles().all.size() + 1);
    handles().living.insert(made.get());
    handles().all.push_back(made.get());
    return made.release();
}

Result<std::shared_ptr<Communicator>> find(ncclComm_t handle) {
    if (auto good = check(handle); !good.ok()) return good.error();
    const std::lock_guard guard(handle->lock);
    if (!handle->communicator) return bad_argument("the communicator was destroyed");
    return handle->communicator;
}

Result<std::shared_ptr<Communicator>> take(ncclComm_t handle) {
    if (auto good = check(handle); !good.ok()) return good.error();
    {
        const std::lock_guard guard(handles().lock);
        handles().living.erase(handle);
    }
    const std::lock_guard guard(handle->lock);
    if (!handle->communicator) return bad_argument("the communicator was destroyed");
    return std::exchange(handle->communicator, nullptr);
}

bool is_destroyed(ncclComm_t handle) {
    if (!check(handle).ok()) return false;
    const std::lock_guard guard(handle->lock);
    return handle->communicator == nullptr;
}

std::vector<std::shared_ptr<Communicator>> living() {
    std::vector<std::shared_ptr<Communicator>> found;
    const std::lock_guard guard(handles().lock);
    for (ncclComm* handle : handles().living) {
        const std::lock_guard one(handle->lock);
        if (handle->communicator) found.push_back(handle->communicator);
    }
    return found;
}

}  // namespace sidestep::nccl
