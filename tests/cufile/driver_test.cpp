// Opening, closing, and what the driver tells.
#include <cerrno>
#include <cstring>
#include <fstream>

#include "tests/cufile/world.hpp"

namespace {

using namespace sidestep::cufile_test;

// Each test is a process of its own under ctest; by hand they follow each other.
struct Closed {
    Closed() { close(); }
    ~Closed() { close(); }
    static void close() {
        while (cuFileUseCount() > 0) cuFileDriverClose();
    }
};

TEST(CufileDriver, OpeningsAreCounted) {
    const Closed closed;
    EXPECT_EQ(cuFileUseCount(), 0);
    EXPECT_CUFILE(cuFileDriverClose(), CU_FILE_DRIVER_NOT_INITIALIZED);
    EXPECT_CUFILE(cuFileDriverOpen(), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileDriverOpen(), CU_FILE_SUCCESS);
    EXPECT_EQ(cuFileUseCount(), 2);
    EXPECT_CUFILE(cuFileDriverClose(), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileDriverClose_v2(), CU_FILE_SUCCESS);
    EXPECT_EQ(cuFileUseCount(), 0);
    EXPECT_CUFILE(cuFileDriverClose_v2(), CU_FILE_DRIVER_NOT_INITIALIZED);
}

TEST(CufileDriver, CallsOpenItWhereNobodyHas) {
    const Closed closed;
    const TempFile file(pattern(100, 1));
    const Descriptor descriptor(file.path(), O_RDONLY);
    {
        const Handle handle(descriptor);
        EXPECT_EQ(cuFileUseCount(), 1);
    }
    EXPECT_EQ(cuFileUseCount(), 1);
    EXPECT_CUFILE(cuFileDriverOpen(), CU_FILE_SUCCESS);
    EXPECT_EQ(cuFileUseCount(), 2);
}

TEST(CufileDriver, TheLastClosingGivesEverythingBack) {
    const Closed closed;
    const TempFile file(pattern(100, 1));
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    std::vector<char> memory(100);
    EXPECT_CUFILE(cuFileBufRegister(memory.data(), memory.size(), 0), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileDriverClose(), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBufDeregister(memory.data()), CU_FILE_DRIVER_CLOSING);
    EXPECT_EQ(cuFileRead(handle, memory.data(), 100, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
    const Handle again(descriptor);
    EXPECT_EQ(cuFileRead(again, memory.data(), 100, 0, 0), 100);
    EXPECT_CUFILE(cuFileBufDeregister(memory.data()), CU_FILE_MEMORY_NOT_REGISTERED);
}

TEST(CufileDriver, PropertiesAreTrue) {
    const Closed closed;
    CUfileDrvProps_t props;
    std::memset(&props, 0xff, sizeof props);
    EXPECT_CUFILE(cuFileDriverGetProperties(&props), CU_FILE_SUCCESS);
    EXPECT_EQ(props.nvfs.major_version, 0U);  // there is no nvidia-fs below an emulated GPU
    EXPECT_EQ(props.nvfs.dstatusflags, 0U);
    EXPECT_EQ(props.nvfs.dcontrolflags, 1U << CU_FILE_ALLOW_COMPAT_MODE);
    EXPECT_EQ(props.fflags, 0xfU);
    EXPECT_EQ(props.max_batch_io_size, 128U);
    EXPECT_CUFILE(cuFileDriverSetPollMode(true, 8), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileDriverSetMaxDirectIOSize(1024), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileDriverSetMaxCacheSize(2048), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileDriverSetMaxPinnedMemSize(4096), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileDriverGetProperties(&props), CU_FILE_SUCCESS);
    EXPECT_EQ(props.nvfs.poll_thresh_size, 8U);
    EXPECT_EQ(props.nvfs.dcontrolflags, 3U);
    EXPECT_EQ(props.nvfs.max_direct_io_size, 1024U);
    EXPECT_EQ(props.max_device_cache_size, 2048U);
    EXPECT_EQ(props.max_device_pinned_mem_size, 4096U);
    // The last one bounds what can be registered.
    const GpuMemory memory(0, std::size_t{5} << 20);
    EXPECT_CUFILE(cuFileBufRegister(memory.get(), std::size_t{5} << 20, 0), CU_FILE_INVALID_MAPPING_SIZE);
    EXPECT_CUFILE(cuFileBufRegister(memory.get(), std::size_t{4} << 20, 0), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBufRegister(memory.get() + 4096, 1, 0), CU_FILE_INVALID_MAPPING_SIZE);
    EXPECT_CUFILE(cuFileBufDeregister(memory.get()), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBufRegister(memory.get() + 4096, 1, 0), CU_FILE_SUCCESS);
}

TEST(CufileDriver, TheMachineIsToldOf) {
    const Closed closed;
    size_t kb = 7;
    EXPECT_CUFILE(cuFileGetBARSizeInKB(0, &kb), CU_FILE_SUCCESS);
    EXPECT_NE(kb, 7U);
    EXPECT_CUFILE(cuFileGetBARSizeInKB(8, &kb), CU_FILE_INVALID_VALUE);
    const TempFile file;
    EXPECT_CUFILE(cuFileExportPCIeTopology(file.path().c_str()), CU_FILE_SUCCESS);
    const auto text = file.content();
    EXPECT_NE(std::string(text.begin(), text.end()).find("\"gpu:7\""), std::string::npos);
    EXPECT_CUFILE(cuFileExportPCIeTopology("/no/such/folder/file"), CU_FILE_IO_ERROR);
}

TEST(CufileDriver, ErrnoIsKept) {
    const Closed closed;
    errno = 77;
    EXPECT_CUFILE(cuFileExportPCIeTopology("/no/such/folder/file"), CU_FILE_IO_ERROR);
    EXPECT_EQ(errno, 77);
    CUfileHandle_t handle = nullptr;
    EXPECT_CUFILE(cuFileHandleRegister(&handle, nullptr), CU_FILE_INVALID_VALUE);
    EXPECT_EQ(errno, 77);
    char byte = 0;
    EXPECT_EQ(cuFileRead(nullptr, &byte, 1, 0, 0), -CU_FILE_INVALID_VALUE);
    EXPECT_EQ(errno, 77);
    const TempFile file(pattern(10, 1));
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle_of_file(descriptor);
    EXPECT_EQ(cuFileRead(handle_of_file, &byte, 1, 0, 0), 1);
    EXPECT_EQ(errno, 77);
}

}  // namespace
