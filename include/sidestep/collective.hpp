// The words of collectives: operations, reductions, who takes part, what was chosen. group.hpp runs them.
//
// Results are the same bits on every rank, for every size, algorithm, alignment and repetition: elements are
// combined in the order of ranks, floats of 8 and 16 bits in 32 bits with one rounding at the end.
// docs/collectives.md tells how.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/dtype.hpp>
#include <sidestep/place.hpp>
#include <sidestep/result.hpp>
#include <sidestep/route.hpp>
#include <sidestep/units.hpp>

namespace sidestep {

enum class Collective {
    all_reduce,
    broadcast,
    reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    all_to_all_v,
    gather,
    scatter,
    send_recv,
    barrier,
};
SIDESTEP_API std::string_view to_string(Collective collective);

enum class ReduceOp { sum, prod, min, max, avg, scaled_sum };
SIDESTEP_API std::string_view to_string(ReduceOp op);

// How elements are combined. avg divides the sum by the number of ranks (integers: towards zero). Of a NaN
// and a number, min and max take the number; of NaNs alone the result is one.
struct Reduction {
    ReduceOp op = ReduceOp::sum;
    // scaled_sum: one element of the type, by which every input of this rank is multiplied first. Either its
    // bytes, or its address in GPU memory, read when the operation runs.
    std::array<std::byte, 8> scale{};
    const void* device_scale = nullptr;

    static Reduction sum() { return {}; }
    static Reduction of(ReduceOp op) { return {op, {}, nullptr}; }
    // Of a floating type or an integer one; for f16, bf16 and f8 types the nearest value.
    SIDESTEP_API static Reduction scaled(double factor, Dtype dtype);
};

// Names a group that is about to be made; every rank is given the same one. Made by one process, passed on by
// whatever means the program has. A plain value.
struct SIDESTEP_API GroupId {
    std::array<std::uint8_t, 16> bytes{};
    // A new one that no other group has.
    static Result<GroupId> create();
    std::string to_string() const;  // 32 hexadecimal digits
    static Result<GroupId> parse(const std::string& text);
    bool operator==(const GroupId&) const = default;
};

// The blocks of all_to_all_v: lists of one entry a rank, in elements, in host memory, read during the call;
// or all four in GPU memory, read when the operation runs.
struct BlockLists {
    const std::uint64_t* send_counts = nullptr;
    const std::uint64_t* send_offsets = nullptr;
    const std::uint64_t* recv_counts = nullptr;
    const std::uint64_t* recv_offsets = nullptr;
    bool on_device = false;
};

// How a rank uses the GPU besides running the operation.
enum class GroupPolicy {
    automatic,
    zero_sm,  // copy engines alone, where an operation can be run so; else it is refused with ErrorCode::unsupported
};

// Ranges are looked at as those of CopyOptions; times are at most longest_limit.
struct GroupOptions {
    // Upper bound of a wait for another rank within an operation. Zero: none; a rank that dies or leaves
    // still ends the wait, and after 30 s the log names who is late. The environment's
    // SIDESTEP_GROUP_TIMEOUT (seconds) is the default of groups that leave this at its default.
    std::chrono::milliseconds timeout{60'000};
    GroupPolicy policy = GroupPolicy::automatic;
    // What `sidestep ps` calls the group; empty: its id.
    std::string name = {};
    // Upper bound of joining, of attach(), and of a split or shrink of this group. Nothing: as `timeout`.
    std::optional<std::chrono::milliseconds> join_timeout = std::nullopt;
    // Thread blocks (CTAs) that an operation may take, so that the rest of the GPU computes meanwhile; 0: as many as are
    // quickest. Of all ranks the least counts. Sends and blocks for n other ranks take n at least.
    int max_blocks = 0;
};

// Which rank of which group this process is, and on which GPU.
struct Seating {
    GroupId id;
    int rank = 0;
    int ranks = 1;
    Place place;

    // Of a process that was started by torchrun, mpirun (Open MPI, MPICH and Intel's), srun or `sidestep
    // run`, by their environment variables: rank and ranks of the whole job, the GPU by the local rank.
    // ErrorCode::not_found where none is set; unsupported where the job runs on several machines.
    SIDESTEP_API static Result<Seating> from_environment();
};

// What a group would do for one call, and why. Plain data.
struct CollectivePlan {
    Collective collective = Collective::all_reduce;
    Bytes bytes = 0;  // as nccl-tests counts sizes: see docs/collectives.md
    // "one-shot packets", "one-shot Lamport", "two-phase packets", "lines", "slices", "pushed slices", "pairs",
    // "ring" or "copy engines".
    std::string algorithm;
    int blocks = 0;  // thread blocks (CTAs), 0 for copy engines
    double expected_us = 0;
    double expected_bus_gb_per_s = 0;
    std::string reason;            // why this one
    std::vector<Refused> refused;  // every other one, with its reason
    // Whether the others have mapped the memory: "yes", or what is copied through the arena and why.
    std::string memory;

    SIDESTEP_API std::string to_string() const;
    SIDESTEP_API std::string to_json() const;
};

// A group that some process of this user takes part in, as `sidestep ps` shows it.
struct RunningRank {
    int rank = 0;
    int process = 0;     // its process id; 0: not joined
    bool alive = false;  // the process runs
    bool left =
        false;  // the rank has left the group in order, or its process has ended so; it may well be alive
    std::string place;
    std::uint64_t enqueued = 0;  // operations so far
    std::uint64_t done = 0;      // of a CUDA GPU: when it was idle last
    std::string last;            // "all_reduce 1048576 f32 sum"
    // How long the oldest operation that is not known to have ended has been the next one; 0: idle.
    double waiting_s = 0;
    std::string error;  // empty: none
};
struct RunningGroup {
    std::string name;
    std::string id;
    std::vector<RunningRank> ranks;
    std::string stuck;  // who waits for whom, since when, and in which operation; empty: nobody
};
// Every group in `peer_folder` (empty: the default, as ContextOptions::peer_folder). Remnants of dead
// processes are removed.
SIDESTEP_API Result<std::vector<RunningGroup>> running_groups(const std::string& peer_folder = {});

}  // namespace sidestep
