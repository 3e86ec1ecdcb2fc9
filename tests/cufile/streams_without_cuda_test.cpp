// Reads and writes in the order of a stream where there is no CUDA: the null stream alone.
#include <dlfcn.h>

#include <algorithm>

#include "tests/cufile/world.hpp"

namespace sidestep::cufile_test {
namespace {

TEST(CufileStreamsWithoutCuda, TheNullStreamIsTheOnlyOne) {
    if (::dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "there is a CUDA driver";
    const auto content = pattern(1'000'000, 1);
    const TempFile file(content);
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle handle(descriptor);
    const GpuMemory memory(0, 1'000'000);
    std::size_t size = 500'000;
    off_t in_file = 3, in_memory = 7, behind = 1'000'000;
    ssize_t bytes = -7;
    ASSERT_CUFILE(cuFileReadAsync(handle, memory.get(), &size, &in_file, &in_memory, &bytes, nullptr),
                  CU_FILE_SUCCESS);
    EXPECT_EQ(bytes, 500'000);
    EXPECT_TRUE(std::equal(content.begin() + 3, content.begin() + 500'003, memory.get() + 7));
    ASSERT_CUFILE(cuFileWriteAsync(handle, memory.get(), &size, &behind, &in_memory, &bytes, nullptr),
                  CU_FILE_SUCCESS);
    EXPECT_EQ(bytes, 500'000);
    EXPECT_EQ(file.content().size(), 1'500'000U);
    const auto stream = reinterpret_cast<CUstream>(&bytes);
    EXPECT_CUFILE(cuFileReadAsync(handle, memory.get(), &size, &in_file, &in_memory, &bytes, stream),
                  CU_FILE_ASYNC_NOT_SUPPORTED);
    while (cuFileUseCount() > 0) EXPECT_CUFILE(cuFileDriverClose(), CU_FILE_SUCCESS);
}

}  // namespace
}  // namespace sidestep::cufile_test
