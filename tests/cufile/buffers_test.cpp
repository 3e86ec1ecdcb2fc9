// Registered memory, and what may be read to without registering.
#include "tests/cufile/world.hpp"

namespace {

using namespace sidestep::cufile_test;

TEST(CufileBuffers, RangesWithinRangesAreTheirOwn) {
    const GpuMemory memory(1, 1 << 20);
    EXPECT_CUFILE(cuFileBufRegister(memory.get(), 1 << 20, 0), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBufRegister(memory.get() + 4096, 4096, CU_FILE_RDMA_REGISTER), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBufDeregister(memory.get()), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBufDeregister(memory.get() + 4096), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBufDeregister(memory.get() + 4096), CU_FILE_MEMORY_NOT_REGISTERED);
}

TEST(CufileBuffers, OffsetsWorkWithAndWithoutRegistration) {
    const auto bytes = pattern(100'000, 3);
    const TempFile file(bytes);
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    const GpuMemory memory(2, 200'000);
    for (const bool registered : {false, true}) {
        if (registered) {
            EXPECT_CUFILE(cuFileBufRegister(memory.get(), 200'000, 0), CU_FILE_SUCCESS);
        }
        std::fill_n(memory.get(), 200'000, static_cast<unsigned char>(0xee));
        EXPECT_EQ(cuFileRead(handle, memory.get(), 1000, 17, 150'001), 1000) << sidestepCufileLastError();
        EXPECT_TRUE(std::equal(bytes.begin() + 17, bytes.begin() + 1017, memory.get() + 150'001));
        EXPECT_EQ(memory.get()[150'000], 0xee);
        EXPECT_EQ(memory.get()[151'001], 0xee);
    }
    EXPECT_EQ(cuFileRead(handle, memory.get(), 1000, 0, 199'001), -CU_FILE_INVALID_MAPPING_RANGE);
    EXPECT_CUFILE(cuFileBufDeregister(memory.get()), CU_FILE_SUCCESS);
    EXPECT_EQ(cuFileRead(handle, memory.get(), 1000, 0, 199'001), -CU_FILE_CUDA_POINTER_RANGE_ERROR);
}

}  // namespace
