// Parameters, before and after the driver opens. What the environment and files say: test_library.py.
#include <unistd.h>

#include <algorithm>
#include <string>

#include "tests/cufile/world.hpp"

namespace {

using namespace sidestep::cufile_test;

struct Closed {
    Closed() {
        while (cuFileUseCount() > 0) cuFileDriverClose();
    }
    ~Closed() {
        while (cuFileUseCount() > 0) cuFileDriverClose();
    }
};

TEST(CufileSettings, EveryNumberWithinItsRange) {
    const Closed closed;
    for (int parameter = 0; parameter < 12; ++parameter) {
        size_t value = 0, least = 0, most = 0, seen = 0;
        EXPECT_CUFILE(cuFileGetParameterSizeT(parameter, &value), CU_FILE_SUCCESS);
        EXPECT_CUFILE(cuFileGetParameterMinMaxValue(parameter, &least, &most), CU_FILE_SUCCESS);
        EXPECT_LE(least, value) << parameter;
        EXPECT_LE(value, most) << parameter;
        for (const size_t wanted : {least, most, value}) {
            EXPECT_CUFILE(cuFileSetParameterSizeT(parameter, wanted), CU_FILE_SUCCESS);
            EXPECT_CUFILE(cuFileGetParameterSizeT(parameter, &seen), CU_FILE_SUCCESS);
            EXPECT_EQ(seen, wanted) << parameter;
        }
        EXPECT_CUFILE(cuFileSetParameterSizeT(parameter, most + 1), CU_FILE_INVALID_VALUE);
        if (least > 0) {
            EXPECT_CUFILE(cuFileSetParameterSizeT(parameter, least - 1), CU_FILE_INVALID_VALUE);
        }
    }
    EXPECT_CUFILE(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, 1023),
                  CU_FILE_INVALID_VALUE);
}

TEST(CufileSettings, FlagsTextsAndSlabs) {
    const Closed closed;
    for (int parameter = 0; parameter < 14; ++parameter) {
        bool before = false, seen = false;
        EXPECT_CUFILE(cuFileGetParameterBool(parameter, &before), CU_FILE_SUCCESS);
        EXPECT_CUFILE(cuFileSetParameterBool(parameter, !before), CU_FILE_SUCCESS);
        EXPECT_CUFILE(cuFileGetParameterBool(parameter, &seen), CU_FILE_SUCCESS);
        EXPECT_EQ(seen, !before) << parameter;
        EXPECT_CUFILE(cuFileSetParameterBool(parameter, before), CU_FILE_SUCCESS);
    }
    char text[5] = {};
    EXPECT_CUFILE(cuFileSetParameterString(CUFILE_PARAM_LOGGING_LEVEL, "WARN"), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, text, 4), CU_FILE_INVALID_VALUE);
    EXPECT_CUFILE(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, text, 5), CU_FILE_SUCCESS);
    EXPECT_EQ(std::string(text), "WARN");
    size_t sizes[3] = {}, counts[3] = {};
    EXPECT_CUFILE(cuFileGetParameterPosixPoolSlabArray(sizes, counts, 3), CU_FILE_SUCCESS);
    EXPECT_EQ(sizes[2], 16384U);
    EXPECT_EQ(counts[0], 128U);
    const size_t new_sizes[] = {8, 64}, new_counts[] = {1, 2};
    EXPECT_CUFILE(cuFileSetParameterPosixPoolSlabArray(new_sizes, new_counts, 2), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileGetParameterPosixPoolSlabArray(sizes, counts, 1), CU_FILE_INVALID_VALUE);
    EXPECT_CUFILE(cuFileGetParameterPosixPoolSlabArray(sizes, counts, 2), CU_FILE_SUCCESS);
    EXPECT_EQ(sizes[1], 64U);
    EXPECT_EQ(counts[1], 2U);
    CUfileP2PFlags_t flags = -1;
    EXPECT_CUFILE(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, &flags), CU_FILE_SUCCESS);
    EXPECT_EQ(flags, 0);
    EXPECT_CUFILE(cuFileDriverSetP2PFlags(CU_FILE_NVME_SUPPORTED, CUFILE_P2PDMA | CUFILE_NVFS),
                  CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, &flags), CU_FILE_SUCCESS);
    EXPECT_EQ(flags, 3);
}

TEST(CufileSettings, AnOpenDriverTakesNone) {
    const Closed closed;
    cuFileDriverOpen();
    const size_t size = 4, count = 1;
    EXPECT_CUFILE(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 64),
                  CU_FILE_DRIVER_ALREADY_OPEN);
    EXPECT_CUFILE(cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, true),
                  CU_FILE_DRIVER_ALREADY_OPEN);
    EXPECT_CUFILE(cuFileSetParameterString(CUFILE_PARAM_LOG_DIR, "/tmp"), CU_FILE_DRIVER_ALREADY_OPEN);
    EXPECT_CUFILE(cuFileSetParameterPosixPoolSlabArray(&size, &count, 1), CU_FILE_DRIVER_ALREADY_OPEN);
    EXPECT_CUFILE(cuFileDriverSetP2PFlags(CU_FILE_NVME_SUPPORTED, CUFILE_NVFS), CU_FILE_DRIVER_ALREADY_OPEN);
}

// They change which way bytes go, and not the bytes.
TEST(CufileSettings, ThoseThatChooseAPathAreFollowed) {
    const auto bytes = pattern(1'000'000, 1);
    const TempFile file(bytes);
    for (const int parameter : {CUFILE_PARAM_FORCE_COMPAT_MODE + 0, CUFILE_PARAM_FORCE_ODIRECT_MODE + 0,
                                CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE + 0}) {
        const Closed closed;
        EXPECT_CUFILE(cuFileSetParameterBool(parameter, true), CU_FILE_SUCCESS);
        const Descriptor descriptor(file.path(), O_RDWR);
        const Handle handle(descriptor);
        const GpuMemory memory(0, bytes.size());
        EXPECT_EQ(cuFileRead(handle, memory.get(), bytes.size(), 0, 0), 1'000'000)
            << sidestepCufileLastError();
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.get()));
        EXPECT_EQ(cuFileRead(handle, memory.get(), 4096, 4096, 0), 4096) << sidestepCufileLastError();
        EXPECT_TRUE(std::equal(bytes.begin() + 4096, bytes.begin() + 8192, memory.get()));
        // Within the file, and beyond its end.
        for (const off_t offset : {off_t{4096}, off_t{1'500'000}}) {
            EXPECT_EQ(cuFileWrite(handle, memory.get(), 4096, offset, 0), 4096) << sidestepCufileLastError();
            const auto content = file.content();
            ASSERT_GE(content.size(), static_cast<std::size_t>(offset) + 4096);
            EXPECT_TRUE(
                std::equal(content.begin() + offset, content.begin() + offset + 4096, bytes.begin() + 4096));
        }
        ASSERT_EQ(::ftruncate(descriptor, static_cast<off_t>(bytes.size())), 0);
        while (cuFileUseCount() > 0) cuFileDriverClose();
        EXPECT_CUFILE(cuFileSetParameterBool(parameter, false), CU_FILE_SUCCESS);
    }
}

TEST(CufileSettings, HostMemoryMayBeRefused) {
    const Closed closed;
    EXPECT_CUFILE(cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY, false),
                  CU_FILE_SUCCESS);
    const TempFile file(pattern(100, 1));
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle handle(descriptor);
    char memory[100];
    EXPECT_EQ(cuFileRead(handle, memory, 100, 0, 0), -CU_FILE_CUDA_MEMORY_TYPE_INVALID);
    EXPECT_CUFILE(cuFileBufRegister(memory, 100, 0), CU_FILE_CUDA_MEMORY_TYPE_INVALID);
    while (cuFileUseCount() > 0) cuFileDriverClose();
    EXPECT_CUFILE(cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY, true), CU_FILE_SUCCESS);
}

}  // namespace
