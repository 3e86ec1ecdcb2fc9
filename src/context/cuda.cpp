#include <sidestep/cuda.hpp>

#include "base/try.hpp"
#include "context/impl.hpp"

namespace sidestep::cuda {

Result<Buffer> buffer(const Context& context, const void* pointer, Bytes bytes) {
    auto& impl = ContextAccess::impl(context);
    for (backend::Backend* backend : impl.registry.usable()) {
        if (!backend->allocates(PlaceKind::gpu).has(MemoryKind::device)) continue;
        SIDESTEP_TRY(const auto found, backend->locate(pointer, bytes));
        return Buffer::memory(found.place, const_cast<void*>(pointer), bytes);
    }
    Error error{ErrorCode::unsupported, "no backend here knows GPU pointers", "cuda::buffer", {}};
    for (const backend::Offer& offer : impl.registry.offers())
        if (offer.name == "cuda") error.hint = offer.support.reason;
    return error;
}

Transfer copy(const Context& context, const Buffer& from, const Buffer& to, CUstream_st* stream,
              const CopyOptions& options) {
    // A null stream is CUDA's legacy default stream, which has a handle of its own (cuda.h:
    // CU_STREAM_LEGACY); inside the library null means a stream of the backend's.
    if (stream == nullptr) stream = reinterpret_cast<CUstream_st*>(1);
    return ContextAccess::submit(context, from, to, options, stream);
}

}  // namespace sidestep::cuda
