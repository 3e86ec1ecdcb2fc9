// CUDA's driver for tests of programs that are linked against a drop-in alone: found by name, as their users do.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <type_traits>

#include <gtest/gtest.h>

struct CUstream_st;  // of cuda.h

namespace sidestep::test {

// Of cuda.h, without it: a CUdevice and a CUresult are ints, a CUdeviceptr is an unsigned long long.
struct CudaByName {
    using Pointer = unsigned long long;
    using Stream = ::CUstream_st*;
    int (*init)(unsigned) = nullptr;
    int (*count)(int*) = nullptr;
    int (*retain)(void**, int) = nullptr;
    int (*set_current)(void*) = nullptr;
    int (*attributes)(unsigned, int*, void**, Pointer) = nullptr;
    int (*allocate)(Pointer*, std::size_t) = nullptr;
    int (*allocate_managed)(Pointer*, std::size_t, unsigned) = nullptr;
    int (*allocate_host)(void**, std::size_t, unsigned) = nullptr;
    int (*release)(Pointer) = nullptr;
    int (*release_host)(void*) = nullptr;
    int (*to_device)(Pointer, const void*, std::size_t) = nullptr;
    int (*to_host)(void*, Pointer, std::size_t) = nullptr;
    int (*copy)(Pointer, Pointer, std::size_t, Stream) = nullptr;
    int (*make_stream)(Stream*, unsigned) = nullptr;
    int (*end_stream)(Stream) = nullptr;
    int (*synchronize)(Stream) = nullptr;
    int (*call_host)(Stream, void (*)(void*), void*) = nullptr;
    int (*begin_capture)(Stream, int) = nullptr;
    int (*end_capture)(Stream, void**) = nullptr;

    void bind_all(void* library) {
        const auto bind = [library](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
        };
        bind(init, "cuInit");
        bind(count, "cuDeviceGetCount");
        bind(retain, "cuDevicePrimaryCtxRetain");
        bind(set_current, "cuCtxSetCurrent");
        bind(attributes, "cuPointerGetAttributes");
        bind(allocate, "cuMemAlloc_v2");
        bind(allocate_managed, "cuMemAllocManaged");
        bind(allocate_host, "cuMemHostAlloc");
        bind(release, "cuMemFree_v2");
        bind(release_host, "cuMemFreeHost");
        bind(to_device, "cuMemcpyHtoD_v2");
        bind(to_host, "cuMemcpyDtoH_v2");
        bind(copy, "cuMemcpyAsync");
        bind(make_stream, "cuStreamCreate");
        bind(end_stream, "cuStreamDestroy_v2");
        bind(synchronize, "cuStreamSynchronize");
        bind(call_host, "cuLaunchHostFunc");
        bind(begin_capture, "cuStreamBeginCapture_v2");
        bind(end_capture, "cuStreamEndCapture");
    }
};

// A test on GPUs of CUDA, which skips where there are none.
class OnCuda : public ::testing::Test {
protected:
    void SetUp() override {
        void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) GTEST_SKIP() << "there is no libcuda.so.1";
        cuda.bind_all(library);
        if (cuda.init(0) != 0 || cuda.count(&devices) != 0 || devices == 0)
            GTEST_SKIP() << "CUDA sees no GPU";
    }

    // That device's primary context becomes the current one of this thread.
    void choose(int device) {
        void* context = nullptr;
        ASSERT_EQ(cuda.retain(&context, device), 0);
        ASSERT_EQ(cuda.set_current(context), 0);
    }

    CudaByName cuda;
    int devices = 0;
};

}  // namespace sidestep::test
