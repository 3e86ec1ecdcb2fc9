// The shim over memory of CUDA: what cuMemAlloc and others gave, on GPUs that are there.
#include <dlfcn.h>

#include "tests/cufile/world.hpp"

namespace {

using namespace sidestep::cufile_test;

// Of cuda.h; a CUdevice and a CUresult are ints, a CUdeviceptr is an unsigned long long.
struct Driver {
    int (*init)(unsigned) = nullptr;
    int (*count)(int*) = nullptr;
    int (*retain)(void**, int) = nullptr;
    int (*set_current)(void*) = nullptr;
    int (*allocate)(unsigned long long*, std::size_t) = nullptr;
    int (*allocate_managed)(unsigned long long*, std::size_t, unsigned) = nullptr;
    int (*allocate_host)(void**, std::size_t, unsigned) = nullptr;
    int (*release)(unsigned long long) = nullptr;
    int (*release_host)(void*) = nullptr;
    int (*to_device)(unsigned long long, const void*, std::size_t) = nullptr;
    int (*to_host)(void*, unsigned long long, std::size_t) = nullptr;
};

template <typename Function>
void bind(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
}

class CufileCuda : public ::testing::Test {
protected:
    void SetUp() override {
        void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) GTEST_SKIP() << "there is no libcuda.so.1";
        bind(library, driver.init, "cuInit");
        bind(library, driver.count, "cuDeviceGetCount");
        bind(library, driver.retain, "cuDevicePrimaryCtxRetain");
        bind(library, driver.set_current, "cuCtxSetCurrent");
        bind(library, driver.allocate, "cuMemAlloc_v2");
        bind(library, driver.allocate_managed, "cuMemAllocManaged");
        bind(library, driver.allocate_host, "cuMemHostAlloc");
        bind(library, driver.release, "cuMemFree_v2");
        bind(library, driver.release_host, "cuMemFreeHost");
        bind(library, driver.to_device, "cuMemcpyHtoD_v2");
        bind(library, driver.to_host, "cuMemcpyDtoH_v2");
        if (driver.init(0) != 0 || driver.count(&devices) != 0 || devices == 0)
            GTEST_SKIP() << "CUDA sees no GPU";
    }

    void choose(int device) {
        void* context = nullptr;
        ASSERT_EQ(driver.retain(&context, device), 0);
        ASSERT_EQ(driver.set_current(context), 0);
    }

    // Into `memory` and back, small and large, registered and not.
    void there_and_back(unsigned long long memory, std::size_t bytes) {
        const auto content = pattern(bytes, 1);
        const TempFile source(content), target;
        const Descriptor from(source.path(), O_RDONLY), into(target.path(), O_RDWR);
        const Handle reading(from), writing(into);
        auto* const base = reinterpret_cast<void*>(memory);
        for (const bool registered : {false, true})
            for (const std::size_t size : {std::size_t{1000}, bytes - 100}) {
                if (registered) {
                    EXPECT_CUFILE(cuFileBufRegister(base, bytes, 0), CU_FILE_SUCCESS);
                }
                const std::vector<unsigned char> clean(bytes, 0xee);
                std::vector<unsigned char> seen(bytes);
                ASSERT_EQ(driver.to_device(memory, clean.data(), bytes), 0);
                EXPECT_EQ(cuFileRead(reading, base, size, 3, 50), static_cast<ssize_t>(size))
                    << sidestepCufileLastError();
                ASSERT_EQ(driver.to_host(seen.data(), memory, bytes), 0);
                EXPECT_TRUE(std::equal(content.begin() + 3, content.begin() + 3 + static_cast<long>(size),
                                       seen.begin() + 50));
                EXPECT_EQ(seen[49], 0xee);
                EXPECT_EQ(seen[50 + size], 0xee);
                EXPECT_EQ(cuFileWrite(writing, base, size, 7, 50), static_cast<ssize_t>(size))
                    << sidestepCufileLastError();
                const auto written = target.content();
                EXPECT_TRUE(std::equal(content.begin() + 3, content.begin() + 3 + static_cast<long>(size),
                                       written.begin() + 7));
                if (registered) {
                    EXPECT_CUFILE(cuFileBufDeregister(base), CU_FILE_SUCCESS);
                }
            }
    }

    Driver driver;
    int devices = 0;
};

TEST_F(CufileCuda, DeviceMemoryOfEveryGpu) {
    for (int device = devices - 1; device >= 0; --device) {
        choose(device);
        unsigned long long memory = 0;
        ASSERT_EQ(driver.allocate(&memory, 1'000'000), 0);
        there_and_back(memory, 1'000'000);
        auto* const base = reinterpret_cast<char*>(memory);
        EXPECT_CUFILE(cuFileBufRegister(base, std::size_t{1} << 40, 0), CU_FILE_CUDA_POINTER_RANGE_ERROR);
        EXPECT_EQ(driver.release(memory), 0);
    }
}

TEST_F(CufileCuda, ManagedAndPinnedMemory) {
    choose(0);
    unsigned long long managed = 0;
    ASSERT_EQ(driver.allocate_managed(&managed, 1'000'000, 1), 0);
    there_and_back(managed, 1'000'000);
    EXPECT_EQ(driver.release(managed), 0);
    void* pinned = nullptr;
    ASSERT_EQ(driver.allocate_host(&pinned, 1'000'000, 0), 0);
    there_and_back(reinterpret_cast<unsigned long long>(pinned), 1'000'000);
    EXPECT_EQ(driver.release_host(pinned), 0);
}

// No context is current on a thread that never called CUDA.
TEST_F(CufileCuda, AThreadWithoutAContext) {
    choose(0);
    unsigned long long memory = 0;
    ASSERT_EQ(driver.allocate(&memory, 1'000'000), 0);
    ASSERT_EQ(driver.set_current(nullptr), 0);
    const TempFile file(pattern(1'000'000, 1));
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    for (const std::size_t size : {std::size_t{1000}, std::size_t{1'000'000}})
        EXPECT_EQ(cuFileRead(handle, reinterpret_cast<void*>(memory), size, 0, 0), static_cast<ssize_t>(size))
            << sidestepCufileLastError();
    choose(0);
    EXPECT_EQ(driver.release(memory), 0);
}

}  // namespace
