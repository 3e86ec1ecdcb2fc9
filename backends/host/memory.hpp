// The memory that the backend gives. It is checked before it is allocated, so that the kernel does not have to kill
// processes for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.hpp"
#include "driver/fd.hpp"
#include "driver/memory_map.hpp"

namespace sidestep::backends::host {

class MachineMemory;

// Memory that is counted as long as it lives. Freed by the destructor, on any thread.
class MappedMemory : public std::enable_shared_from_this<MappedMemory> {
public:
    MappedMemory(driver::MemoryMap map, Bytes bytes, int numa_node, std::shared_ptr<MachineMemory> owner);
    ~MappedMemory();

    void* address() const { return map_.address(); }

private:
    friend class MachineMemory;
    Result<int> share();

    const driver::MemoryMap map_;
    const Bytes bytes_;
    const int numa_node_;
    const std::shared_ptr<MachineMemory> owner_;
    std::uint64_t identity_ = 0;
    std::mutex mutex_;  // guards the one below
    driver::Fd shared_;
};

// Of shared memory: what goes with it is a descriptor of memfd_create(2).
inline constexpr std::string_view memfd_scheme = "memfd";

// Gives memory and keeps count, since the kernel counts a page only when it is first touched. Shared by
// everything that allocates for one backend; any thread may call.
class MachineMemory : public std::enable_shared_from_this<MachineMemory> {
public:
    // ErrorCode::out_of_memory, with what was asked and what is available, where the machine, the
    // control group or the node has less. `what` names the thing: "of host memory".
    Result<std::shared_ptr<MappedMemory>> take(Bytes bytes, int numa_node, const std::string& what);

    // Makes the memory that take() gave at an address one that other processes can map; nothing where the
    // bytes are not such memory. Place and kind are left to say. The first call for some memory moves all of it: see
    // driver::share_pages.
    Result<std::optional<backend::Exported>> share(const void* address, Bytes bytes);

private:
    friend class MappedMemory;
    std::atomic<Bytes> taken_{0};
    std::mutex mutex_;                              // guards the two below
    std::map<std::uintptr_t, MappedMemory*> live_;  // by first address
    std::uint64_t next_identity_ = 1;
};

// The memory of a modelled machine: which address belongs to which GPU. Any thread may call. Its Allocations keep it alive.
class EmulatedMemory final : public backend::GpuAddresses,
                             public std::enable_shared_from_this<EmulatedMemory> {
public:
    // `gpu_bytes`: what each GPU, by its number, may hand out, 0: whatever this machine has.
    EmulatedMemory(std::map<int, Bytes> gpu_bytes, std::shared_ptr<MachineMemory> machine);

    // Memory of a GPU, or pinned memory of the host. ErrorCode::out_of_memory names what was asked and
    // what is free.
    Result<Allocation> allocate(const Place& place, Bytes bytes, MemoryKind kind);

    // Memory that is mapped here for as long as `held` lives. That of a process that emulates the same machine counts as used
    // there.
    Allocation hold(const Buffer& buffer, MemoryKind kind, std::shared_ptr<const void> held);

    // What lies at the buffer's address. Fails where that is not what its place claims: another GPU's
    // memory, memory of none, or more than was allocated there. Host memory that was not allocated here
    // is pageable.
    Result<backend::Description> describe(const Buffer& buffer) const;

    Result<backend::Description> locate(const void* address, Bytes bytes) override;
    Result<std::shared_ptr<void>> pin(const Buffer& buffer) override;

    // The allocation of a GPU that an address lies in; its identity is never given twice.
    Result<backend::Extent> extent(const void* address) const;

private:
    struct Range {
        std::uintptr_t end = 0;
        Place place;
        MemoryKind kind = MemoryKind::device;
        std::uint64_t identity = 0;
        bool foreign = false;  // pinned, not allocated here
    };
    struct Gpu {
        Bytes total = 0;
        Bytes used = 0;
    };

    using Ranges = std::map<std::uintptr_t, Range>;  // by first address

    // Counts as used as long as the answer lives.
    Result<std::shared_ptr<void>> reserve(int gpu, Bytes bytes);
    void release(std::uintptr_t begin);
    // With the mutex held: the range that holds an address.
    const Ranges::value_type* range_at(std::uintptr_t address) const;
    // The range's description, if the bytes from `begin`, which lies in it, do not reach beyond it.
    static Result<backend::Description> within(const Range& range, std::uintptr_t begin, Bytes bytes);

    const std::shared_ptr<MachineMemory> machine_;
    mutable std::shared_mutex mutex_;  // guards what follows
    std::uint64_t last_identity_ = 0;
    std::map<int, Gpu> gpus_;  // all are there from the start
    Ranges ranges_;
};

}  // namespace sidestep::backends::host
