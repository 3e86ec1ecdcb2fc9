// The few functions of the CUDA driver that the public API has no word for: work of the host, and a wait for the host, in the
// order of a stream. Their names and types are those of cuda.h; a CUresult is an int, a CUdeviceptr a number.
#pragma once

#include <cstdint>

#include "shims/cufile/failure.hpp"

struct CUctx_st;

namespace sidestep::cufile {

struct StreamDriver {
    int (*current)(CUctx_st** context) = nullptr;
    int (*push)(CUctx_st* context) = nullptr;
    int (*pop)(CUctx_st** context) = nullptr;
    int (*context_of)(CUstream stream, CUctx_st** context) = nullptr;
    int (*number_of)(CUstream stream, unsigned long long* number) = nullptr;
    int (*capturing)(CUstream stream, int* status) = nullptr;
    int (*exchange_capture_mode)(int* mode) = nullptr;  // of this thread
    int (*synchronize)(CUstream stream) = nullptr;
    int (*allocate)(unsigned long long* address, std::size_t bytes) = nullptr;
    int (*copy)(unsigned long long to, unsigned long long from, std::size_t bytes, CUstream stream) = nullptr;
    int (*call_host)(CUstream stream, void (*function)(void*), void* data) = nullptr;
    int (*wait_for_word)(CUstream stream, unsigned long long address, std::uint32_t value,
                         unsigned flags) = nullptr;

    // False where there is no driver, or one without any of them.
    bool usable = false;

    // Loaded once, when it is asked for first.
    static const StreamDriver& get();
};

// Tells streams apart: also the default ones of two contexts, and one that got the handle of another that is gone.
struct StreamKey {
    CUctx_st* context = nullptr;
    unsigned long long number = 0;
    bool operator==(const StreamKey&) const = default;
};

// Makes the context of a stream current on this thread. The default streams (null, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD) are
// those of the context that is current already. The thread is in the relaxed mode of stream capture meanwhile: while any
// thread captures in the global mode, cuMemAlloc would be refused else, and spoil that capture.
class StreamContext {
public:
    explicit StreamContext(CUstream stream);
    ~StreamContext();
    StreamContext(const StreamContext&) = delete;
    StreamContext& operator=(const StreamContext&) = delete;

    // CU_FILE_INVALID_VALUE for what is no stream, CU_FILE_INVALID_CONTEXT_ERROR for a default one of no context.
    const Refusal& refused() const { return refused_; }
    // Not of a stream that is being captured: asking for its number would end the capture.
    StreamKey key() const;

private:
    CUstream stream_;
    CUctx_st* context_ = nullptr;
    bool pushed_ = false;
    int capture_mode_ = 2;  // cuda.h: CU_STREAM_CAPTURE_MODE_RELAXED; then the one before
    const bool relaxed_ = StreamDriver::get().exchange_capture_mode(&capture_mode_) == 0;
    Refusal refused_;
};

// CU_FILE_CUDA_DRIVER_ERROR and CUDA's number; nothing wrong for 0.
Refusal refusal_of_cuda(int result, const char* call);

}  // namespace sidestep::cufile
