// The one public header that knows CUDA: pointers of unknown kind, and order with a caller's stream.
// Needs no CUDA header; a cudaStream_t and a CUstream are both pointers to the type declared here.
#pragma once

#include <sidestep/api.h>
#include <sidestep/context.hpp>

struct CUstream_st;

namespace sidestep::cuda {

// A buffer over any pointer CUDA knows (device, pool, VMM, managed, registered host memory), or over
// ordinary host memory where it knows none. Managed memory counts as that of the GPU it prefers, else
// as host memory. ErrorCode::unsupported where the context has no CUDA.
SIDESTEP_API Result<Buffer> buffer(const Context& context, const void* pointer, Bytes bytes);

// A copy in the order of `stream`: it starts after the work already on the stream, and work put on the
// stream later starts after the copy. Where the route is one hop of the CUDA backend, the copy is
// enqueued on the stream itself and this costs nothing; a staged route holds the stream at a gate until
// its last byte has arrived, and been verified if asked for. A null stream is the legacy default stream. The
// stream belongs to the caller and outlives the copy.
//
// CUDA cannot make the work behind a staged copy that failed fail as well: it runs once the failure was handed
// out by the Transfer, the Transfer was dropped, or 10 s have passed. So look at the Transfer before its results
// are used. Copies of this Context behind it on the stream do fail, with its error (docs/async.md).
//
// The deadline counts from the call, the stall limit from when the stream comes to the gate; a copy of one hop
// has none. After its deadline a copy that is on the stream already still happens when the stream comes to it.
//
// On a stream that is being captured into a graph, a copy of one hop becomes a node of the graph: the bytes
// move each time the graph is launched, from and to the same addresses, and both buffers stay valid as long
// as the graph. The Transfer then ends at once, and its Receipt's notes say so. ErrorCode::unsupported for a
// staged route, for options.verify, and for a stream of another GPU than those of the copy.
SIDESTEP_API Transfer copy(const Context& context, const Buffer& from, const Buffer& to, CUstream_st* stream,
                           const CopyOptions& options = {});

// The copies of a batch (see Context::copy_batch) in the order of `stream`, enqueued on it in one call for
// each two places, or a few for tens of thousands; also as nodes of a graph. All copies must have one hop on
// the CUDA backend: ErrorCode::unsupported names the position of one that has not, and nothing is enqueued
// then. The first one of a Context loads a kernel; CUDA does that when the GPU has nothing to do, and the call
// waits for it.
SIDESTEP_API Transfer copy_batch(const Context& context, const std::vector<BatchItem>& items,
                                 CUstream_st* stream, const CopyOptions& options = {});

}  // namespace sidestep::cuda
