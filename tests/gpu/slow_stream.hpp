// A stream that is busy for as long as a test wants, and notes of what it saw when it went on.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "tests/gpu/gpu_machine.hpp"

namespace sidestep::gpu_tests {

// A stream on one GPU with host functions that the test writes.
class SlowStream {
public:
    explicit SlowStream(int gpu) : context_(Machine::get().context(gpu)), cuda_(Machine::get().cuda()) {
        driver::ScopedCudaContext current(context_);
        expect_success(cuda_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    ~SlowStream() {
        EXPECT_TRUE(drained(std::chrono::seconds(30))) << "the stream never came to its end";
        driver::ScopedCudaContext current(context_);
        cuda_.cuStreamDestroy(stream_);
    }
    SlowStream(const SlowStream&) = delete;
    SlowStream& operator=(const SlowStream&) = delete;

    CUstream get() const { return stream_; }

    // Puts a function on the stream; it must not call CUDA.
    void run(std::function<void()> function) {
        driver::ScopedCudaContext current(context_);
        auto* owned = new std::function<void()>(std::move(function));
        const auto call = [](void* data) {
            std::unique_ptr<std::function<void()>> taken(static_cast<std::function<void()>*>(data));
            (*taken)();
        };
        expect_success(cuda_.cuLaunchHostFunc(stream_, call, owned), "cuLaunchHostFunc");
    }

    void sleep(std::chrono::milliseconds time) {
        run([time] { std::this_thread::sleep_for(time); });
    }

    // Puts the setting of every byte of a GPU buffer on the stream.
    void set(const Buffer& buffer, unsigned char value) {
        driver::ScopedCudaContext current(context_);
        const auto address = reinterpret_cast<CUdeviceptr>(buffer.address());
        expect_success(cuda_.cuMemsetD8Async(address, value, buffer.size(), stream_), "cuMemsetD8Async");
    }

    // Puts a copy by the driver itself on the stream.
    void copy(const Buffer& to, const Buffer& from) {
        driver::ScopedCudaContext current(context_);
        expect_success(
            cuda_.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to.address()),
                                reinterpret_cast<CUdeviceptr>(from.address()), from.size(), stream_),
            "cuMemcpyAsync");
    }

    // Whether everything on the stream ended within the limit.
    bool drained(std::chrono::milliseconds limit) const {
        const auto end = std::chrono::steady_clock::now() + limit;
        driver::ScopedCudaContext current(context_);
        for (;;) {
            const CUresult status = cuda_.cuStreamQuery(stream_);
            if (status != CUDA_ERROR_NOT_READY) {
                expect_success(status, "cuStreamQuery");
                return true;
            }
            if (std::chrono::steady_clock::now() > end) return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

private:
    const driver::CudaContext& context_;
    const driver::Cuda& cuda_;
    CUstream stream_ = nullptr;
};

}  // namespace sidestep::gpu_tests
