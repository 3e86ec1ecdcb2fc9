// Checks for host memory before it is allocated, so that the kernel does not have to kill processes for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "driver/fd.hpp"
#include "driver/memory_map.hpp"

namespace sidestep::backends::host {

// Memory that is counted as long as it lives. Freed by the destructor, on any thread.
class MappedMemory;

// Memory as another process can map it.
struct SharedPages {
    std::shared_ptr<MappedMemory> memory;
    int descriptor = -1;         // belongs to `memory`
    Bytes offset = 0;            // of the asked address in it
    std::uint64_t identity = 0;  // no other memory of this MachineMemory has or had it
};

// Gives memory and keeps count, since the kernel counts a page only when it is first touched. Shared by
// everything that allocates for one backend; any thread may call.
class MachineMemory : public std::enable_shared_from_this<MachineMemory> {
public:
    // ErrorCode::out_of_memory, with what was asked and what is available, where the machine, the
    // control group or the node has less. `what` names the thing: "of host memory".
    Result<std::shared_ptr<MappedMemory>> take(Bytes bytes, int numa_node, const std::string& what);

    // Makes the memory that take() gave at an address one that other processes can map; nothing where the
    // bytes are not such memory. The first call for some memory moves all of it: see driver::share_pages.
    Result<std::optional<SharedPages>> share(const void* address, Bytes bytes);

private:
    friend class MappedMemory;
    std::atomic<Bytes> taken_{0};
    std::mutex mutex_;                              // guards the two below
    std::map<std::uintptr_t, MappedMemory*> live_;  // by first address
    std::uint64_t next_identity_ = 1;
};

class MappedMemory : public std::enable_shared_from_this<MappedMemory> {
public:
    MappedMemory(driver::MemoryMap map, Bytes bytes, int numa_node, std::shared_ptr<MachineMemory> owner);
    ~MappedMemory();
    MappedMemory(const MappedMemory&) = delete;
    MappedMemory& operator=(const MappedMemory&) = delete;

    void* address() const { return map_.address(); }
    Bytes size() const { return bytes_; }

private:
    friend class MachineMemory;
    Result<int> share();

    driver::MemoryMap map_;
    Bytes bytes_;
    int numa_node_;
    std::shared_ptr<MachineMemory> owner_;
    std::uint64_t identity_ = 0;
    std::mutex mutex_;  // guards the one below
    driver::Fd shared_;
};

}  // namespace sidestep::backends::host
