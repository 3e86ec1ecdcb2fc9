// What cannot be: one table of it, with the code that each is answered with. shims/cufile/README.md shows the same table, which
// is checked here.
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <regex>

#include "tests/cufile/world.hpp"

namespace {

using namespace sidestep::cufile_test;

// What the cases share.
struct World {
    TempFile file{pattern(100'000, 1)};
    Descriptor both{file.path(), O_RDWR};
    Handle handle{both};
    GpuMemory gpu{0, 65536};
    std::vector<unsigned char> host = std::vector<unsigned char>(65536);

    int add(int descriptor, int type = CU_FILE_HANDLE_TYPE_OPAQUE_FD) {
        CUfileDescr_t described = description(descriptor);
        described.type = type;
        CUfileHandle_t made = nullptr;
        const int code = cuFileHandleRegister(&made, &described).err;
        if (code == CU_FILE_SUCCESS) cuFileHandleDeregister(made);
        return code;
    }
    int add(const std::string& path, int flags) { return add(Descriptor(path, flags)); }
    int read(CUfileHandle_t fh, void* base, size_t size, off_t offset, off_t base_offset) {
        return -static_cast<int>(cuFileRead(fh, base, size, offset, base_offset));
    }
    int write(CUfileHandle_t fh, void* base, size_t size, off_t offset, off_t base_offset) {
        return -static_cast<int>(cuFileWrite(fh, base, size, offset, base_offset));
    }
};

struct BadInput {
    const char* what;  // as README.md says it
    int code;
    std::function<int(World&)> call;
};

std::vector<BadInput> of_files() {
    return {
        {"a null address, handle or description", CU_FILE_INVALID_VALUE,
         [](World& w) {
             CUfileHandle_t made = nullptr;
             CUfileDescr_t described = description(w.both);
             return std::min({cuFileHandleRegister(nullptr, &described).err,
                              cuFileHandleRegister(&made, nullptr).err, cuFileBufRegister(nullptr, 10, 0).err,
                              cuFileBufDeregister(nullptr).err, w.read(nullptr, w.host.data(), 1, 0, 0),
                              w.read(w.handle, nullptr, 1, 0, 0), w.write(w.handle, nullptr, 1, 0, 0),
                              cuFileGetVersion(nullptr).err, cuFileDriverGetProperties(nullptr).err,
                              cuFileGetBARSizeInKB(0, nullptr).err, cuFileExportPCIeTopology(nullptr).err,
                              cuFileGetParameterSizeT(0, nullptr).err,
                              cuFileDriverGetP2PFlags(0, nullptr).err});
         }},
        {"a descriptor that is not open", CU_FILE_INVALID_VALUE,
         [](World& w) { return std::min(w.add(-1), w.add(98765)); }},
        {"a handle of Windows, or of an unknown type", CU_FILE_IO_NOT_SUPPORTED,
         [](World& w) {
             return std::min(w.add(w.both, CU_FILE_HANDLE_TYPE_OPAQUE_WIN32), w.add(w.both, 77));
         }},
        {"a file of a file system in user space (fs_ops)", CU_FILE_IO_NOT_SUPPORTED,
         [](World& w) { return w.add(w.both, CU_FILE_HANDLE_TYPE_USERSPACE_FS); }},
        {"a directory", CU_FILE_INVALID_FILE_TYPE, [](World& w) { return w.add("/tmp", O_RDONLY); }},
        {"a pipe", CU_FILE_INVALID_FILE_TYPE,
         [](World& w) {
             int ends[2];
             if (::pipe(ends) != 0) return -1;
             const Descriptor first(ends[0]), second(ends[1]);
             return w.add(first);
         }},
        {"a socket", CU_FILE_INVALID_FILE_TYPE,
         [](World& w) { return w.add(Descriptor(::socket(AF_UNIX, SOCK_STREAM, 0))); }},
        {"a character device", CU_FILE_INVALID_FILE_TYPE,
         [](World& w) { return w.add("/dev/zero", O_RDWR); }},
        {"a descriptor opened with O_APPEND, O_NONBLOCK, O_NOFOLLOW, O_NOATIME, O_TMPFILE or O_PATH",
         CU_FILE_INVALID_FILE_OPEN_FLAG,
         [](World& w) {
             int least = 9999;
             for (const int flag : {O_APPEND, O_NONBLOCK, O_NOFOLLOW, O_NOATIME})
                 least = std::min(least, w.add(w.file.path(), O_RDWR | flag));
             return std::min({least, w.add(w.file.path(), O_PATH), w.add("/tmp", O_RDWR | O_TMPFILE)});
         }},
        {"a descriptor that is registered", CU_FILE_HANDLE_ALREADY_REGISTERED,
         [](World& w) { return w.add(w.both); }},
    };
}

std::vector<BadInput> of_moving() {
    return {
        {"a handle that was made up, or was given back", CU_FILE_HANDLE_NOT_REGISTERED,
         [](World& w) {
             CUfileHandle_t gone = nullptr;
             {
                 const Descriptor again(w.file.path(), O_RDWR);
                 const Handle handle(again);
                 gone = handle;
             }
             cuFileHandleDeregister(gone);
             cuFileHandleDeregister(nullptr);
             return std::min(w.read(gone, w.host.data(), 1, 0, 0),
                             w.write(reinterpret_cast<CUfileHandle_t>(0x1234), w.host.data(), 1, 0, 0));
         }},
        {"reading a descriptor opened for writing alone, or the other way round",
         CU_FILE_INVALID_FILE_OPEN_FLAG,
         [](World& w) {
             const Descriptor writing(w.file.path(), O_WRONLY), reading(w.file.path(), O_RDONLY);
             const Handle to(writing), from(reading);
             return std::min(w.read(to, w.host.data(), 1, 0, 0), w.write(from, w.host.data(), 1, 0, 0));
         }},
        {"a negative offset, in the file or in memory", CU_FILE_INVALID_VALUE,
         [](World& w) {
             return std::min(w.read(w.handle, w.host.data(), 1, -1, 0),
                             w.write(w.handle, w.host.data(), 1, 0, -1));
         }},
        {"a size, or an offset with a size, beyond any file", CU_FILE_INVALID_VALUE,
         [](World& w) {
             return std::min(
                 w.read(w.handle, w.host.data(), SIZE_MAX, 0, 0),
                 w.write(w.handle, w.host.data(), 4096, std::numeric_limits<off_t>::max() - 100, 0));
         }},
        {"memory beyond a GPU's allocation", CU_FILE_CUDA_POINTER_RANGE_ERROR,
         [](World& w) {
             return std::min({w.read(w.handle, w.gpu.get(), 65537, 0, 0),
                              w.write(w.handle, w.gpu.get(), 2, 0, 65535),
                              cuFileBufRegister(w.gpu.get() + 1, 65536, 0).err});
         }},
        {"memory beyond what was registered at its base", CU_FILE_INVALID_MAPPING_RANGE,
         [](World& w) {
             cuFileBufRegister(w.gpu.get(), 4096, 0);
             const int code = std::min(w.read(w.handle, w.gpu.get(), 4097, 0, 0),
                                       w.write(w.handle, w.gpu.get(), 1, 0, 4096));
             cuFileBufDeregister(w.gpu.get());
             return code;
         }},
    };
}

std::vector<BadInput> of_memory() {
    return {
        {"registering nothing, or with unknown flags", CU_FILE_INVALID_VALUE,
         [](World& w) {
             return std::min(cuFileBufRegister(w.gpu.get(), 0, 0).err,
                             cuFileBufRegister(w.gpu.get(), 4096, 4).err);
         }},
        {"registering a base twice", CU_FILE_MEMORY_ALREADY_REGISTERED,
         [](World& w) {
             cuFileBufRegister(w.host.data(), 100, 0);
             const int code = cuFileBufRegister(w.host.data(), 200, 0).err;
             cuFileBufDeregister(w.host.data());
             return code;
         }},
        {"giving back memory that is not registered", CU_FILE_MEMORY_NOT_REGISTERED,
         [](World& w) { return cuFileBufDeregister(w.host.data() + 1).err; }},
        {"registering more than max_device_pinned_mem_size_kb", CU_FILE_INVALID_MAPPING_SIZE,
         [](World&) {
             size_t before = 0;
             cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, &before);
             cuFileDriverSetMaxPinnedMemSize(64);
             const GpuMemory larger(0, 65540);
             const int code = cuFileBufRegister(larger.get(), 65540, 0).err;
             cuFileDriverSetMaxPinnedMemSize(before);
             return code;
         }},
    };
}

std::vector<BadInput> of_the_driver() {
    return {
        {"a limit that is out of its range, or no multiple of 4 KiB", CU_FILE_DRIVER_UNSUPPORTED_LIMIT,
         [](World&) {
             return std::min({cuFileDriverSetMaxDirectIOSize(0).err,
                              cuFileDriverSetMaxDirectIOSize(size_t{1} << 40).err,
                              cuFileDriverSetMaxCacheSize(65).err, cuFileDriverSetMaxPinnedMemSize(1).err,
                              cuFileDriverSetPollMode(true, 3).err});
         }},
        {"a parameter that does not exist, or a value out of its range", CU_FILE_INVALID_VALUE,
         [](World&) {
             size_t size = 0, other = 0;
             bool flag = false;
             char text[8];
             int storage = 0;
             return std::min({cuFileGetParameterSizeT(12, &size).err, cuFileGetParameterBool(-1, &flag).err,
                              cuFileGetParameterString(4, text, 8).err,
                              cuFileGetParameterMinMaxValue(99, &size, &other).err,
                              cuFileGetParameterMinMaxValue(0, &size, nullptr).err,
                              cuFileGetParameterString(0, text, 0).err,
                              cuFileDriverGetP2PFlags(14, &storage).err,
                              cuFileSetParameterBool(14, true).err});
         }},
        {"a parameter that is set while the driver is open", CU_FILE_DRIVER_ALREADY_OPEN,
         [](World&) { return cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 64).err; }},
        {"a GPU that does not exist", CU_FILE_INVALID_VALUE,
         [](World&) {
             size_t kb = 0;
             return std::min(cuFileGetBARSizeInKB(-1, &kb).err, cuFileGetBARSizeInKB(99, &kb).err);
         }},
        {"closing, or limiting, a driver that is not open", CU_FILE_DRIVER_NOT_INITIALIZED,
         [](World&) {
             while (cuFileUseCount() > 0) cuFileDriverClose();
             return std::min(cuFileDriverClose().err, cuFileDriverSetMaxCacheSize(1024).err);
         }},
        {"giving back memory after the last closing", CU_FILE_DRIVER_CLOSING,
         [](World& w) {
             while (cuFileUseCount() > 0) cuFileDriverClose();
             return cuFileBufDeregister(w.host.data()).err;
         }},
    };
}

std::vector<BadInput> bad_inputs() {
    std::vector<BadInput> all;
    for (const auto& part : {of_files(), of_moving(), of_memory(), of_the_driver()})
        all.insert(all.end(), part.begin(), part.end());
    return all;
}

TEST(CufileBadInput, IsAnsweredWithTheDocumentedCode) {
    for (const BadInput& bad : bad_inputs()) {
        World world;
        EXPECT_EQ(bad.call(world), bad.code) << bad.what << "\n" << sidestepCufileLastError();
        while (cuFileUseCount() > 0) cuFileDriverClose();
    }
}

TEST(CufileBadInput, StandsInTheReadme) {
    std::ifstream file(SIDESTEP_SOURCE_DIR "/shims/cufile/README.md");
    std::map<std::string, int> told;
    const std::regex row(R"(\| (.+) \| (50\d\d) [A-Z_]+ \|)");
    std::smatch found;
    for (std::string line; std::getline(file, line);)
        if (std::regex_match(line, found, row)) told[found[1]] = std::stoi(found[2]);
    for (const BadInput& bad : bad_inputs()) {
        EXPECT_EQ(told.count(bad.what), 1U) << "README.md lacks: " << bad.what;
        EXPECT_EQ(told[bad.what], bad.code) << bad.what;
        told.erase(bad.what);
    }
    // Rows with another test of their own.
    for (const char* elsewhere :
         {"a descriptor that cannot be opened a second time",
          "host memory where allow_system_memory is false",
          "any call in a child of fork() after the driver was opened", "a settings file that cannot be read",
          "SIDESTEP_CUFILE_VERSION that is none",
          // batch_test.cpp
          "a batch of no entries, or of more than io_batchsize",
          "submitting no entries, more than there is room for, one that is not CUFILE_BATCH or is of no "
          "registered "
          "file, or to what is no batch: none is carried out",
          "collecting from what is no batch",
          "collecting at least more than the list holds, or a time limit that is none",
          // stream_test.cpp, streams_without_cuda_test.cpp
          "a stream where there is no CUDA driver", "a default stream where no CUDA context is current",
          "registering a stream twice or with unknown flags, giving back one that is not registered",
          // stats_test.cpp
          "statistics above the level that was set, or a level that is none",
          "statistics of a driver that is not open"})
        EXPECT_EQ(told.erase(elsewhere), 1U) << "README.md lacks: " << elsewhere;
    for (const auto& [what, code] : told)
        ADD_FAILURE() << "README.md has a row without a test: " << what << ", " << code;
}

}  // namespace
