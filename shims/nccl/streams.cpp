#include "shims/nccl/streams.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "shims/nccl/driver.hpp"

namespace sidestep::nccl {
namespace {

constexpr unsigned without_timing = 2;  // cuda.h: CU_EVENT_DISABLE_TIMING

Result<void> check(int result, const char* call) {
    if (result == 0) return {};
    return Error{
        ErrorCode::device_error,
        fmt::format("streams of one group could not be made to wait for each other: CUDA error {}", result),
        call,
        {}};
}

}  // namespace

StreamJoin::~StreamJoin() {
    for (CUevent_st* event : events_) Driver::get().destroy_event(event);
    if (device_ < 0) return;
    CUctx_st* ours = nullptr;
    Driver::get().pop(&ours);
    Driver::get().release_primary(device_);
}

// What is put on `later` from now on waits for what is on `first` now.
Result<void> StreamJoin::follow(cudaStream_t first, cudaStream_t later) {
    const Driver& driver = Driver::get();
    CUevent_st* event = nullptr;
    if (auto done = check(driver.create_event(&event, without_timing), "cuEventCreate"); !done.ok())
        return done;
    events_.push_back(event);
    if (auto done = check(driver.record(event, first), "cuEventRecord"); !done.ok()) return done;
    return check(driver.wait(later, event, 0), "cuStreamWaitEvent");
}

Result<void> StreamJoin::begin(std::vector<Call>& calls, int device) {
    first_ = calls.front().stream;
    for (Call& call : calls) {
        if (call.stream != first_ && std::find(others_.begin(), others_.end(), call.stream) == others_.end())
            others_.push_back(call.stream);
        call.stream = first_;
    }
    if (others_.empty()) return {};
    const Driver& driver = Driver::get();
    CUctx_st* context = nullptr;
    int handle = 0;
    if (auto done = check(driver.device(&handle, device), "cuDeviceGet"); !done.ok()) return done;
    if (auto done = check(driver.retain_primary(&context, handle), "cuDevicePrimaryCtxRetain"); !done.ok())
        return done;
    if (auto done = check(driver.push(context), "cuCtxPushCurrent"); !done.ok()) {
        driver.release_primary(handle);
        return done;
    }
    device_ = handle;
    for (cudaStream_t other : others_)
        if (auto done = follow(other, first_); !done.ok()) return done;
    return {};
}

Result<void> StreamJoin::end() {
    for (cudaStream_t other : others_)
        if (auto done = follow(first_, other); !done.ok()) return done;
    return {};
}

}  // namespace sidestep::nccl
