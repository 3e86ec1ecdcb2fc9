#include "shims/cufile/stream_driver.hpp"

#include <dlfcn.h>

#include <fmt/format.h>

namespace sidestep::cufile {
namespace {

template <typename Function>
bool bind(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
}

StreamDriver load() {
    StreamDriver d;
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) return d;
    d.usable = bind(library, d.current, "cuCtxGetCurrent") && bind(library, d.push, "cuCtxPushCurrent_v2") &&
               bind(library, d.pop, "cuCtxPopCurrent_v2") && bind(library, d.context_of, "cuStreamGetCtx") &&
               bind(library, d.capturing, "cuStreamIsCapturing") &&
               bind(library, d.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode") &&
               bind(library, d.synchronize, "cuStreamSynchronize") &&
               bind(library, d.allocate, "cuMemAlloc_v2") && bind(library, d.copy, "cuMemcpyAsync") &&
               bind(library, d.call_host, "cuLaunchHostFunc") &&
               bind(library, d.wait_for_word, "cuStreamWaitValue32_v2") &&
               bind(library, d.number_of, "cuStreamGetId");
    return d;
}

bool is_default(CUstream stream) {
    return reinterpret_cast<std::uintptr_t>(stream) <=
           2;  // cuda.h: null, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD
}

}  // namespace

const StreamDriver& StreamDriver::get() {
    static const StreamDriver loaded = load();
    return loaded;
}

StreamContext::StreamContext(CUstream stream) : stream_(stream) {
    const StreamDriver& driver = StreamDriver::get();
    if (is_default(stream)) {
        if (driver.current(&context_) != 0 || context_ == nullptr)
            refused_ = refusal(CU_FILE_INVALID_CONTEXT_ERROR,
                               "no CUDA context is current, and the stream is a default one");
    } else if (const int result = driver.context_of(stream, &context_); result != 0) {
        refused_ = refusal_of_cuda(result, "cuStreamGetCtx");
        refused_.code = CU_FILE_INVALID_VALUE;
    } else {
        refused_ = refusal_of_cuda(driver.push(context_), "cuCtxPushCurrent");
        pushed_ = !refused_;
    }
}

StreamKey StreamContext::key() const {
    const StreamDriver& driver = StreamDriver::get();
    StreamKey key{context_, 0};
    if (driver.number_of(stream_, &key.number) != 0) key.number = reinterpret_cast<std::uintptr_t>(stream_);
    return key;
}

StreamContext::~StreamContext() {
    if (relaxed_) StreamDriver::get().exchange_capture_mode(&capture_mode_);
    CUctx_st* ours = nullptr;
    if (pushed_) StreamDriver::get().pop(&ours);
}

Refusal refusal_of_cuda(int result, const char* call) {
    if (result == 0) return {};
    return {CU_FILE_CUDA_DRIVER_ERROR, 0, result, fmt::format("CUDA error {} ({})", result, call)};
}

}  // namespace sidestep::cufile
