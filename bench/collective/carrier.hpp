// Who carries a call: this library's group, or NCCL. Both are measured by the same loop.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <sidestep/group.hpp>

#include "bench/collective/plan.hpp"
#include "bench/raw_nccl.hpp"

namespace sidestep::bench::collective {

// One library's rank with memory of its own: a buffer to send from and one to receive into, of `bytes` bytes
// each. Belongs to one thread.
class Carrier {
public:
    virtual ~Carrier() = default;
    virtual std::string name() const = 0;
    // Why it is not asked for this; empty where it is.
    virtual std::string refuses(const Call& call) const = 0;
    virtual void* send() const = 0;
    virtual void* recv() const = 0;
    // Enqueues the call between addresses in these buffers.
    virtual Result<void> run(const Call& call, const void* from, void* to, void* stream) = 0;
    // Waits for what was enqueued, where there are no streams; else says whether all is well.
    virtual Result<void> wait() = 0;
    // Which algorithm it takes, in words; may be empty.
    virtual std::string path(const Call& call, const void* from, const void* to) = 0;
};

// Where a rank stands in a run.
struct Seat {
    int rank = 0;
    int ranks = 1;
    int gpu = 0;
    int root = 0;
    bool emulated = false;
};

// A group's rank; `policy` as the group was made with. `group` and `memory` outlive it.
struct GroupMemory {
    Allocation send;
    Allocation recv;
};
std::unique_ptr<Carrier> group_carrier(Group& group, const GroupMemory& memory, const Seat& seat,
                                       GroupPolicy policy);

// NCCL's memory for one rank, freed by the destructor.
class NcclMemory {
public:
    static Result<std::unique_ptr<NcclMemory>> allocate(std::shared_ptr<raw::Nccl> library, Bytes bytes);
    ~NcclMemory();
    NcclMemory(const NcclMemory&) = delete;
    NcclMemory& operator=(const NcclMemory&) = delete;

    void* send = nullptr;
    void* recv = nullptr;

private:
    explicit NcclMemory(std::shared_ptr<raw::Nccl> library) : library_(std::move(library)) {}
    std::shared_ptr<raw::Nccl> library_;
};

// A communicator of one mode. Returns when all ranks have joined under `id`.
Result<std::unique_ptr<Carrier>> nccl_carrier(std::shared_ptr<raw::Nccl> library, const NcclMemory& memory,
                                              Bytes bytes, raw::NcclMode mode, const std::string& id,
                                              const Seat& seat);

// Counts and offsets of all_to_all_v for one rank, in elements.
struct SkewedBlocks {
    SkewedBlocks(const Call& call, int rank, int ranks);
    BlockLists lists() const;
    std::vector<std::uint64_t> send_counts, send_offsets, recv_counts, recv_offsets;
};

}  // namespace sidestep::bench::collective
