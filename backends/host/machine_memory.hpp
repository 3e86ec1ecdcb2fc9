// Host memory that is asked for before the kernel has to end processes for it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "driver/memory_map.hpp"

namespace sidestep::backends::host {

// Memory that is counted as long as it lives. Freed by the destructor, on any thread.
class MappedMemory;

// Gives memory and keeps count, since the kernel counts a page only when it is first touched. Shared by
// everything that allocates for one backend; any thread may call.
class MachineMemory : public std::enable_shared_from_this<MachineMemory> {
public:
    // ErrorCode::out_of_memory, with what was asked and what is available, where the machine, the
    // control group or the node has less. `what` names the thing: "of host memory".
    Result<std::shared_ptr<MappedMemory>> take(Bytes bytes, int numa_node, const std::string& what);

private:
    friend class MappedMemory;
    std::atomic<Bytes> taken_{0};
};

class MappedMemory {
public:
    MappedMemory(driver::MemoryMap map, Bytes bytes, std::shared_ptr<MachineMemory> owner);
    ~MappedMemory();
    MappedMemory(const MappedMemory&) = delete;
    MappedMemory& operator=(const MappedMemory&) = delete;

    void* address() const { return map_.address(); }
    Bytes size() const { return bytes_; }

private:
    driver::MemoryMap map_;
    Bytes bytes_;
    std::shared_ptr<MachineMemory> owner_;
};

}  // namespace sidestep::backends::host
