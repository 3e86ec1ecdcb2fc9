// The shim over memory of CUDA: what cuMemAlloc and others gave, on GPUs that are there.
#include "tests/cuda_by_name.hpp"
#include "tests/cufile/world.hpp"

namespace {

using namespace sidestep::cufile_test;

class CufileCuda : public sidestep::test::OnCuda {
protected:
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
                ASSERT_EQ(cuda.to_device(memory, clean.data(), bytes), 0);
                EXPECT_EQ(cuFileRead(reading, base, size, 3, 50), static_cast<ssize_t>(size))
                    << sidestepCufileLastError();
                ASSERT_EQ(cuda.to_host(seen.data(), memory, bytes), 0);
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
};

TEST_F(CufileCuda, DeviceMemoryOfEveryGpu) {
    for (int device = devices - 1; device >= 0; --device) {
        choose(device);
        unsigned long long memory = 0;
        ASSERT_EQ(cuda.allocate(&memory, 1'000'000), 0);
        there_and_back(memory, 1'000'000);
        auto* const base = reinterpret_cast<char*>(memory);
        EXPECT_CUFILE(cuFileBufRegister(base, std::size_t{1} << 40, 0), CU_FILE_CUDA_POINTER_RANGE_ERROR);
        EXPECT_EQ(cuda.release(memory), 0);
    }
}

TEST_F(CufileCuda, ManagedAndPinnedMemory) {
    choose(0);
    unsigned long long managed = 0;
    ASSERT_EQ(cuda.allocate_managed(&managed, 1'000'000, 1), 0);
    there_and_back(managed, 1'000'000);
    EXPECT_EQ(cuda.release(managed), 0);
    void* pinned = nullptr;
    ASSERT_EQ(cuda.allocate_host(&pinned, 1'000'000, 0), 0);
    there_and_back(reinterpret_cast<unsigned long long>(pinned), 1'000'000);
    EXPECT_EQ(cuda.release_host(pinned), 0);
}

// No context is current on a thread that never called CUDA.
TEST_F(CufileCuda, AThreadWithoutAContext) {
    choose(0);
    unsigned long long memory = 0;
    ASSERT_EQ(cuda.allocate(&memory, 1'000'000), 0);
    ASSERT_EQ(cuda.set_current(nullptr), 0);
    const TempFile file(pattern(1'000'000, 1));
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    for (const std::size_t size : {std::size_t{1000}, std::size_t{1'000'000}})
        EXPECT_EQ(cuFileRead(handle, reinterpret_cast<void*>(memory), size, 0, 0), static_cast<ssize_t>(size))
            << sidestepCufileLastError();
    choose(0);
    EXPECT_EQ(cuda.release(memory), 0);
}

}  // namespace
