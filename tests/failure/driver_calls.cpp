// Calls of CUDA's driver go wrong as those of the operating system do: what dlsym() finds of it is a function around it.
#include "tests/failure/driver_calls.hpp"

#include <dlfcn.h>
#include <unwind.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "driver/cuda.hpp"
#include "tests/failure/calls.hpp"

namespace sidestep::failure {
namespace {

struct Entry {
    const char* name;
    void* around;
    void* real;
};
Entry& entry(int number);

// The next functions that lead to a call, as a number that is the same in every run of one build.
std::size_t site() {
    struct Walk {
        int left = 7;
        std::size_t hash = 0;
    } walk;
    const auto step = [](_Unwind_Context* frame, void* data) {
        auto& so_far = *static_cast<Walk*>(data);
        const std::size_t at = _Unwind_GetIP(frame) - reinterpret_cast<std::size_t>(&site);
        so_far.hash = (so_far.hash ^ at) * 0x9E3779B97F4A7C15ull;
        return --so_far.left == 0 ? _URC_END_OF_STACK : _URC_NO_REASON;
    };
    _Unwind_Backtrace(step, &walk);
    return walk.hash >> 40 | 1;
}

template <typename Function>
struct Around;
template <typename... Arguments>
struct Around<CUresult (*)(Arguments...)> {
    template <int number>
    static CUresult call(Arguments... arguments) {
        const Entry& me = entry(number);
        if (goes_wrong(me.name, site())) return CUDA_ERROR_UNKNOWN;
        const Unwatched driver;
        return reinterpret_cast<CUresult (*)(Arguments...)>(me.real)(arguments...);
    }
};

// Names as they are after the preprocessor: with their versions.
#define SIDESTEP_NAME(name) #name
constexpr int first = __COUNTER__ + 1;
#define SIDESTEP_ENTRY(name)                                                                              \
    {SIDESTEP_NAME(name), reinterpret_cast<void*>(&Around<decltype(&::name)>::call<__COUNTER__ - first>), \
     nullptr},
Entry entries[] = {SIDESTEP_CUDA_SYMBOLS(SIDESTEP_ENTRY)};

Entry& entry(int number) {
    return entries[number];
}

// A call that does not go wrong; null where there is no driver.
void* as_it_is(const char* name) {
    for (const Entry& each : entries)
        if (std::strcmp(each.name, name) == 0) return each.real;
    return nullptr;
}
#define SIDESTEP_REAL(name) reinterpret_cast<decltype(&::name)>(as_it_is(SIDESTEP_NAME(name)))

}  // namespace

void* current_context() {
    CUcontext current = nullptr;
    if (const auto get = SIDESTEP_REAL(cuCtxGetCurrent)) get(&current);
    return current;
}

// Work of the stream that ends when it is told to.
struct CallersStream::Hold {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;

    static void CUDA_CB wait(void* data) {
        auto* const hold = static_cast<Hold*>(data);
        std::unique_lock lock(hold->mutex);
        hold->changed.wait(lock, [hold] { return hold->over; });
    }
};

CallersStream::CallersStream() : hold_(std::make_unique<Hold>()) {
    CUcontext context = nullptr;
    SIDESTEP_REAL(cuDevicePrimaryCtxRetain)(&context, 0);
    context_ = context;
    in_context([this] { SIDESTEP_REAL(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING); });
}

CallersStream::~CallersStream() {
    let_go();
    in_context([this] {
        SIDESTEP_REAL(cuStreamSynchronize)(stream_);
        SIDESTEP_REAL(cuStreamDestroy)(stream_);
    });
    SIDESTEP_REAL(cuDevicePrimaryCtxRelease)(0);
}

template <typename Work>
void CallersStream::in_context(Work work) {
    CUcontext context = static_cast<CUcontext>(context_);
    SIDESTEP_REAL(cuCtxPushCurrent)(context);
    work();
    SIDESTEP_REAL(cuCtxPopCurrent)(&context);
}

void CallersStream::hold() {
    in_context([this] { SIDESTEP_REAL(cuLaunchHostFunc)(stream_, &Hold::wait, hold_.get()); });
}

void CallersStream::let_go() {
    const std::lock_guard lock(hold_->mutex);
    hold_->over = true;
    hold_->changed.notify_all();
}

void CallersStream::copy(void* to, const void* from, std::size_t bytes) {
    in_context([&] {
        SIDESTEP_REAL(cuMemcpyAsync)
        (reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, stream_);
    });
}

bool CallersStream::ends_within(std::chrono::milliseconds limit) {
    const auto until = std::chrono::steady_clock::now() + limit;
    const auto busy = [this] {
        CUresult status = CUDA_SUCCESS;
        in_context([&] { status = SIDESTEP_REAL(cuStreamQuery)(stream_); });
        return status == CUDA_ERROR_NOT_READY;
    };
    while (busy()) {
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
}

}  // namespace sidestep::failure

// Instead of the C library's.
extern "C" void* dlsym(void* library, const char* name) noexcept {
    using Find = void* (*)(void*, const char*);
    static const Find find = [] {
        void* found = nullptr;
        for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"})
            if (found == nullptr) found = ::dlvsym(RTLD_NEXT, "dlsym", version);
        return reinterpret_cast<Find>(found);
    }();
    void* const found = find(library, name);
    // What says in words what went wrong goes well.
    if (found == nullptr || std::strncmp(name, "cuGetError", 10) == 0) return found;
    for (auto& each : sidestep::failure::entries) {
        if (std::strcmp(each.name, name) != 0) continue;
        each.real = found;
        return each.around;
    }
    return found;
}
