#include <sidestep/cuda.hpp>

#include "base/try.hpp"
#include "config.hpp"
#include "context/impl.hpp"
#if SIDESTEP_HAVE_CUDA
#include "driver/cuda.hpp"
#endif

namespace sidestep::cuda {
namespace {

#if SIDESTEP_HAVE_CUDA
bool is_capturing(CUstream_st* stream) {
    // The table of the driver's functions: loaded once a process, never changed.
    static const auto driver = driver::Cuda::load();
    if (!driver) return false;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    // A default stream without a current context is not a stream that somebody captures.
    return (*driver)->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}
#else
bool is_capturing(CUstream_st*) {
    return false;
}
#endif

// A null stream is CUDA's legacy default stream, which has a handle of its own (cuda.h: CU_STREAM_LEGACY);
// inside the library null means a stream of the backend's.
CUstream_st* named(CUstream_st* stream) {
    return stream ? stream : reinterpret_cast<CUstream_st*>(1);
}

Error not_in_a_graph() {
    return {ErrorCode::unsupported, "the bytes of a copy in a graph move later, so it cannot be verified now",
            "the stream is being captured", "verify outside of the capture"};
}

constexpr const char* in_a_graph =
    "it is part of the graph now: the bytes move each time the graph is launched";

}  // namespace

Result<Buffer> buffer(const Context& context, const void* pointer, Bytes bytes) {
    auto& impl = ContextAccess::impl(context);
    for (backend::GpuAddresses* addresses : impl.registry.with(&backend::Backend::gpu_addresses)) {
        SIDESTEP_TRY(const auto found, addresses->locate(pointer, bytes));
        return Buffer::memory(found.place, const_cast<void*>(pointer), bytes);
    }
    Error error{ErrorCode::unsupported, "no backend here knows GPU pointers", "cuda::buffer", {}};
    for (const backend::Offer& offer : impl.registry.offers())
        if (offer.name == "cuda") error.hint = offer.support.reason;
    return error;
}

Transfer copy(const Context& context, const Buffer& from, const Buffer& to, CUstream_st* stream,
              const CopyOptions& options) {
    stream = named(stream);
    if (!is_capturing(stream)) return ContextAccess::submit(context, from, to, options, stream);
    if (options.verify) return ContextAccess::refuse(context, not_in_a_graph());
    CopyOptions single = options;
    single.lanes = 1;  // several would need a gate, which no graph can have
    return ContextAccess::submit(context, from, to, single, stream, in_a_graph);
}

Transfer copy_batch(const Context& context, const std::vector<BatchItem>& items, CUstream_st* stream,
                    const CopyOptions& options) {
    stream = named(stream);
    return ContextAccess::submit_batch(context, items, options, stream,
                                       is_capturing(stream) ? in_a_graph : "");
}

}  // namespace sidestep::cuda
