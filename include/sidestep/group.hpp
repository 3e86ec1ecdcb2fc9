// Collectives: ranks that run one operation together.
//
//     auto group = sidestep::Group::local(*context, {Place::gpu(0), Place::gpu(1)});    // one process, two GPUs
//     auto rank = sidestep::Group::join(*context, seating);                            // one process a GPU
//     rank->all_reduce(buffer, buffer, count, Dtype::f32, Reduction::sum(), stream);
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/collective.hpp>
#include <sidestep/context.hpp>

struct CUstream_st;

namespace sidestep {

// One rank of a group. Move-only. Operations return once they are enqueued: they run in order, on `stream`
// (null: the legacy default stream) of the rank's GPU, and may be captured into a CUDA graph and replayed. On
// emulated GPUs there are no streams: wait() waits for all. Every rank of the group calls the same operations
// in the same order; send and recv only match within their pair.
//
// Counts are in elements and may be 0. Pointers are GPU memory of this rank, aligned to their element or not
// at all; send and receive buffer are the same (in place, as NCCL defines it for each operation) or do not
// overlap.
//
// Errors: a call fails with invalid_argument for what makes no sense by itself. What goes wrong while
// operations run (a rank that died, never came, or called something else: timed_out, mismatch, io_error,
// naming rank, process and operation) ends the group: status() and every later call say so.
//
// Threads: one at a time may call operations of one rank; status(), abort() and wait() any, at any time.
class SIDESTEP_API Group {
public:
    // Joins as one rank; returns when all have. ErrorCode::timed_out names the ranks that did not come,
    // io_error the one that died meanwhile or cannot join, with its reason; what all got wrong together is
    // invalid_argument. A stop that is asked for while it waits for others, by any thread, ends it within a
    // tenth of a second: ErrorCode::cancelled, also on the ranks that have come.
    static Result<Group> join(const Context& context, const Seating& seating,
                              const GroupOptions& options = {}, std::stop_token stop = {});
    // All ranks of a group within this process, one on each place.
    static Result<std::vector<Group>> local(const Context& context, const std::vector<Place>& places,
                                            const GroupOptions& options = {});

    Group(Group&&) noexcept;
    Group& operator=(Group&&) noexcept;
    // Leaves: waits for this rank's own operations (bounded by the timeout). The last rank of a Context to
    // leave waits, 5 s at most, until other ranks have let go of the memory of all; where its group has failed
    // or was aborted, less than a second.
    ~Group();

    int rank() const;
    int ranks() const;
    const Place& place() const;
    const GroupId& id() const;

    // recv[i] = combination of all ranks' send[i].
    Result<void> all_reduce(const void* send, void* recv, std::size_t count, Dtype dtype,
                            const Reduction& reduction = {}, CUstream_st* stream = nullptr);
    // The root's `send` into every rank's `recv`; `send` is looked at on the root only.
    Result<void> broadcast(const void* send, void* recv, std::size_t count, Dtype dtype, int root,
                           CUstream_st* stream = nullptr);
    // As all_reduce, to the root alone; `recv` is looked at on the root only.
    Result<void> reduce(const void* send, void* recv, std::size_t count, Dtype dtype,
                        const Reduction& reduction, int root, CUstream_st* stream = nullptr);
    // `count` elements of each rank, in the order of ranks, into recv (ranks * count). In place: send == recv
    // + rank * count.
    Result<void> all_gather(const void* send, void* recv, std::size_t count, Dtype dtype,
                            CUstream_st* stream = nullptr);
    // Combination of all ranks' send (ranks * count); this rank gets block `rank` of it. In place: recv ==
    // send + rank * count.
    Result<void> reduce_scatter(const void* send, void* recv, std::size_t count, Dtype dtype,
                                const Reduction& reduction = {}, CUstream_st* stream = nullptr);
    // Block r of send (count elements) to block `rank` of rank r's recv.
    Result<void> all_to_all(const void* send, void* recv, std::size_t count, Dtype dtype,
                            CUstream_st* stream = nullptr);
    // The same with blocks of any sizes and places. What rank a sends to b is what b receives from a: else
    // ErrorCode::mismatch ends the group.
    Result<void> all_to_all_v(const void* send, void* recv, const BlockLists& blocks, Dtype dtype,
                              CUstream_st* stream = nullptr);
    // Every rank's `send` into the root's `recv` (ranks * count), and the other way round.
    Result<void> gather(const void* send, void* recv, std::size_t count, Dtype dtype, int root,
                        CUstream_st* stream = nullptr);
    Result<void> scatter(const void* send, void* recv, std::size_t count, Dtype dtype, int root,
                         CUstream_st* stream = nullptr);
    // To and from one other rank (or this one). The n-th send of a to b goes to the n-th recv of b from a.
    Result<void> send(const void* data, std::size_t count, Dtype dtype, int to,
                      CUstream_st* stream = nullptr);
    Result<void> recv(void* data, std::size_t count, Dtype dtype, int from, CUstream_st* stream = nullptr);
    // Ends on the stream of each rank when it has been reached on all.
    Result<void> barrier(CUstream_st* stream = nullptr);

    // Calls between begin_calls() and end_calls() are gathered, and end_calls() runs them: collectives in their order,
    // where small ones of one kind (all_reduce, reduce_scatter, all_gather, all_to_all; one type and reduction, but for
    // scaled_sum) share a launch, up to 16 of them and what the arena holds; then all sends and receives together, so
    // that ranks may send to each other. None writes what another touches, all go to one stream, and every rank gathers
    // the same collectives. Where one makes no sense, end_calls() answers its error and none runs. Pairs of the two may be
    // nested: the outermost end_calls() runs the calls. Lists of all_to_all_v stay valid until then.
    void begin_calls();
    Result<void> end_calls();

    // Lets the others map the memory now, instead of after its first use: calls that follow are zero-copy.
    // Only this rank calls. The memory stays until detach() or the end of the group. Memory that no other
    // process can map is an ErrorCode::unsupported with the reason; operations then carry it through the
    // arena.
    Result<void> attach(const Buffer& buffer);
    // Returns when the others have unmapped the memory, so that it may be freed. They unmap it once no operation of this
    // rank is under way. Where they have not after 200 ms: ErrorCode::timed_out. Then call it again, which answers at once.
    Result<void> detach(const Buffer& buffer);

    // What all_reduce and the others would do for `count` elements between these buffers (null: memory that
    // is attached).
    Result<CollectivePlan> explain(Collective collective, std::size_t count, Dtype dtype,
                                   const Reduction& reduction = {}, const void* send = nullptr,
                                   const void* recv = nullptr) const;

    // A new group of the ranks that give the same color, in the order of `key` (then of rank); nothing for a
    // color below 0. All ranks of this group call; where one gives up, all that have called do. Blocks the
    // host; `stop` as with join().
    Result<std::optional<Group>> split(int color, int key, const GroupOptions& options = {},
                                       std::stop_token stop = {});
    // A new group without the ranks `excluded`, which do not call. Where this group has failed or some are
    // dead, the others still can. All that remain exclude the same ranks, and one group can be shrunk several
    // times. Blocks the host; `stop` as with join().
    Result<Group> shrink(const std::vector<int>& excluded, const GroupOptions& options = {},
                         std::stop_token stop = {});

    // Success as long as all is well; after that the first error. Cheap: reads host memory.
    Result<void> status() const;
    // Whether all operations enqueued outside of graphs have ended. Never blocks.
    Result<bool> idle() const;
    // Waits until idle, or until the group has failed and its operations within this process have given up, a
    // second at most: buffers may be freed afterwards.
    Result<void> wait() const;
    // Ends the group on all ranks: operations in flight give up within a second, also inside of graphs. Any
    // thread, any time.
    void abort(const std::string& why = {});

private:
    struct Impl;
    explicit Group(std::shared_ptr<Impl> impl);
    std::shared_ptr<Impl> impl_;
    friend struct GroupAccess;
};

}  // namespace sidestep
