// What a backend does for collectives: it seats ranks.
//
// A seat is one rank of one group on one GPU: an arena that the other ranks map, tables of where their memory
// is mapped here, and a way to run tasks in order. Which tasks make up a collective, and who is in the group,
// is decided above (src/collective).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <sidestep/allocation.hpp>
#include <sidestep/buffer.hpp>
#include <sidestep/result.hpp>
#include "protocol/collective_task.hpp"

namespace sidestep::protocol {
struct CopyRow;
}

namespace sidestep::backend {

struct Exported;

// The allocation that an address lies in: what others map, whatever part of it an operation uses.
struct Extent {
    Buffer whole;
    std::uint64_t identity = 0;  // another one where the address was given out again
    // Sharing it with another process leaves the bytes where they are. False on emulated GPUs: there the
    // first Sharer::share() moves them, so nobody may write meanwhile.
    bool shares_in_place = true;
    // It is one of several mappings in one range of addresses, so that a buffer may go on behind it.
    bool goes_on = false;
    // Why no other rank maps it, though tasks of this one can use it; null: others may.
    const char* never_lent = nullptr;
};

struct SeatRequest {
    unsigned rank = 0;
    unsigned ranks = 1;                          // at most protocol::max_ranks
    Place place;                                 // a GPU of this process
    std::uint64_t deadline_ns = 60'000'000'000;  // of every wait of a task for another rank; 0: none
};

inline std::span<char> bytes_of(const Buffer& buffer) {
    return {static_cast<char*>(buffer.address()), buffer.size()};
}

// Any thread may call; run() by one at a time. The destructor waits for tasks in flight, aborting them first.
class Seat {
public:
    virtual ~Seat() = default;

    // Of ArenaLayout{ranks}.bytes(), zeroed; can be shared with other processes (Sharer::share).
    virtual const Buffer& arena() const = 0;

    // The allocation that holds `address`. ErrorCode::invalid_argument for what is not memory of this seat's
    // GPU.
    virtual Result<Extent> extent(const void* address) = 0;

    // Memory that another process shared (Sharer::share), mapped for this seat's GPU until the Allocation is
    // dropped. May block.
    virtual Result<Allocation> open(const Exported& exported) = 0;

    // Whether the seat's GPU reaches another one of this machine over NVLink or the like, and not over PCIe.
    virtual bool over_nvlink(const Place&) const { return true; }

    // Whether the machine can reduce within its NVSwitches (NVLink multicast), which no task here makes use of.
    virtual bool multicast() const { return false; }

    // Tells the seat's GPU from any other one, alike in all processes of this machine; at most 64 bytes. Empty: an
    // emulated one, which any number of processes may have at the same time.
    virtual std::string gpu_id() const { return {}; }

    // Multiprocessors of the seat's GPU, or of its part that programs see. 0: an emulated one, whose tasks find room in
    // any case.
    virtual unsigned multiprocessors() const { return 0; }

    // Moves the arena into host memory that processes share: zeroed, page-locked and mapped for the seat's
    // GPU. For groups in which some GPUs do not reach each other. Call it before the first task. From then
    // on arena() is another one, and every rank that knew the former one has to be told. Answers the handle
    // by which other processes open() it. May block.
    virtual Result<std::shared_ptr<const Exported>> move_arena_to_host() {
        return Error{
            ErrorCode::unsupported, "this seat's arena cannot lie in host memory", "collectives", {}};
    }

    // Makes memory of this very process, on whichever GPU or another seat's arena, reachable by this seat's
    // GPU at its own address. ErrorCode::unsupported where the machine has no peer access between the two.
    // May block.
    virtual Result<void> admit(const Buffer& memory) = 0;

    // From now on, slot `slot` of rank `rank` (0 is its arena, this rank's own included) is `memory` of this
    // process, mapped for this seat's GPU; empty: no longer. Takes effect for tasks that are run later,
    // and for those of graphs that are launched later. Returns when the table is written.
    virtual Result<void> reach(unsigned rank, unsigned slot, std::span<char> memory) = 0;

    // Enqueues the task behind those before it. `stream` is a caller's CUstream (null: the legacy default
    // stream); on a stream that is being captured the task becomes a node of the graph. Emulated GPUs have no
    // streams: tasks run one after the other, on a thread of the seat's own. Never waits for another rank. A
    // task that is refused was not enqueued; where an error leaves a part of it in the stream, the seat has
    // aborted (FaultKind::aborted).
    virtual Result<void> run(const protocol::CollectiveTask& task, void* stream) = 0;

    // Whether every task that was run outside of graphs has ended. Never blocks.
    virtual Result<bool> idle() = 0;
    // The same, and every task of the graphs that were launched so far.
    virtual Result<bool> at_rest() { return idle(); }
    // While it is not idle: every task with a lower CollectiveTask::number than this, or the same, has ended;
    // others may have too. Nothing where the seat does not know without work for the GPU. Never blocks.
    virtual std::optional<std::uint64_t> ended() const { return std::nullopt; }

    // What the first task that gave up wrote; nothing as long as all is well. Costs a read of host memory.
    virtual std::optional<protocol::FaultRecord> fault() const = 0;

    // Tasks in flight and to come give up soon (FaultKind::aborted), also those inside of a graph.
    virtual void abort() noexcept = 0;

    virtual void set_deadline(std::uint64_t ns) = 0;

    // Before the first task: where ranks tell each other of tasks of Shape::copies, one row for each rank,
    // zeroed at first, in memory of the host that all ranks share and that outlives the seat. Emulated GPUs
    // have it in their arenas.
    virtual void meet(protocol::CopyRow*) {}
    // After all arenas are reached, and before any rank of this process runs a task of Shape::copies: does
    // what would have to wait for tasks that wait for other ranks.
    virtual Result<void> prepare_copies() { return {}; }
    // Before the first task: asks where the others find so many bytes of this rank by now, for tasks of graphs
    // that were captured before they did. Until halt() any thread may call it.
    virtual void ask(std::function<protocol::Token(const void*, Bytes)>) {}
    // From the return on, no thread of the seat calls the GPU's driver: the process ends, or the seat does.
    // Tasks of Shape::copies never end then.
    virtual void halt() noexcept {}
};

}  // namespace sidestep::backend
