// Memory of GPUs in several processes.
//
// Three ways, by how the memory was made: legacy IPC handles for cuMemAlloc memory, and for memory of
// cuMemMap file descriptors, or fabric handles where it was created for those only.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/backend.hpp"
#include "backends/cuda/pointer.hpp"

namespace sidestep::backends::cuda {

// Any thread may call.
class Ipc {
public:
    explicit Ipc(Gpus& gpus) : gpus_(gpus) {}

    // The memory that `pointer` says lies at the buffer, for other processes; it may be a part of an
    // allocation, and span several physical ones. ErrorCode::unsupported, with what to do, for memory that
    // cannot be shared.
    Result<backend::Exported> share(const Buffer& buffer, const Pointer& pointer);

    // Maps what share() made in another process; nothing for other schemes. The GPU is found by its UUID,
    // whatever its number here. not_found where this process does not see it. With `user` it is mapped for
    // that GPU instead, and the one that it lies on need not be visible.
    Result<std::optional<Allocation>> open(const backend::Exported& exported, Gpu* user = nullptr);

private:
    struct Pieces;  // of physical memory, exported once however often they are shared

    Result<backend::Exported> share_allocation(const Gpu& gpu, const Buffer& buffer, const Pointer& pointer);
    Result<backend::Exported> share_mappings(const Gpu& gpu, const Buffer& buffer);
    Result<std::shared_ptr<Pieces>> pieces_of(const Gpu& gpu, const Buffer& buffer, CUdeviceptr& first);
    Result<Gpu*> find(const CUuuid& uuid, Gpu* user);
    Result<Allocation> open_allocation(const backend::Exported& exported, Gpu* user);
    Result<Allocation> open_mappings(const backend::Exported& exported, bool fabric, Gpu* user);

    Gpus& gpus_;
    std::mutex mutex_;  // guards the two below
    std::map<std::vector<CUmemGenericAllocationHandle>, std::weak_ptr<Pieces>> shared_;
    std::uint64_t next_identity_ = 1;
};

}  // namespace sidestep::backends::cuda
