// The memory of a modelled machine: which address belongs to which GPU.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "backend/backend.hpp"
#include "backends/host/machine_memory.hpp"

namespace sidestep::backends::host {

// Any thread may call. Its Allocations keep it alive.
class EmulatedMemory final : public backend::GpuAddresses,
                             public std::enable_shared_from_this<EmulatedMemory> {
public:
    // `gpu_bytes`: what each GPU may hand out, 0: whatever this machine has.
    EmulatedMemory(std::vector<Bytes> gpu_bytes, std::shared_ptr<MachineMemory> machine);

    // Memory of a GPU, or pinned memory of the host. ErrorCode::out_of_memory names what was asked and
    // what is free.
    Result<Allocation> allocate(const Place& place, Bytes bytes, MemoryKind kind);

    // Makes host memory that was allocated elsewhere count as pinned until the holder lets go.
    // ErrorCode::invalid_argument where part of it is pinned already.
    Result<std::shared_ptr<void>> pin(const Buffer& buffer) override;

    // Memory of a process that emulates the same machine, mapped here at `address` for as long as `held`
    // lives. It counts as used in the process that allocated it.
    Allocation adopt(const Place& place, MemoryKind kind, std::shared_ptr<const void> held, void* address,
                     Bytes bytes);

    // What lies at the buffer's address. Fails where that is not what its place claims: another GPU's
    // memory, memory of none, or more than was allocated there. Host memory that was not allocated here
    // is pageable.
    Result<backend::Description> describe(const Buffer& buffer) const;

    // What lies at an address, whatever its place.
    Result<backend::Description> locate(const void* address, Bytes bytes) override;

    // The allocation of a GPU that an address lies in; its identity is never given twice.
    Result<backend::Extent> extent(const void* address) const;

private:
    struct Range {
        std::uintptr_t end = 0;
        Place place;
        MemoryKind kind = MemoryKind::device;
        std::uint64_t identity = 0;
        bool foreign = false;  // pinned, not allocated here
        bool adopted = false;  // another process counts it
    };
    struct Gpu {
        Bytes total = 0;
        Bytes used = 0;
    };

    Result<void> reserve(int gpu, Bytes bytes);
    void release(std::uintptr_t begin, Bytes bytes);
    // With the mutex held: the range that holds an address.
    const Range* range_at(std::uintptr_t address) const;
    // The range's description, if the bytes from `begin`, which lies in it, do not reach beyond it.
    static Result<backend::Description> within(const Range& range, std::uintptr_t begin, Bytes bytes);

    const std::shared_ptr<MachineMemory> machine_;
    mutable std::shared_mutex mutex_;  // guards what follows
    std::uint64_t last_identity_ = 0;
    std::vector<Gpu> gpus_;
    std::map<std::uintptr_t, Range> ranges_;  // by first address
};

}  // namespace sidestep::backends::host
