// Bytes between files and memory: every misalignment, the end of the file, sizes of every magnitude.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "tests/cufile/world.hpp"

namespace {

using namespace sidestep::cufile_test;

constexpr unsigned char mark = 0xee;
constexpr std::size_t room = 64;  // on both sides of what is read to

// Memory of a GPU or of the host.
struct Memory {
    Memory(bool gpu, std::size_t bytes) : host(gpu ? 0 : bytes) {
        if (gpu) on_gpu = std::make_unique<GpuMemory>(3, bytes);
    }
    unsigned char* get() { return on_gpu ? on_gpu->get() : host.data(); }
    std::unique_ptr<GpuMemory> on_gpu;
    std::vector<unsigned char> host;
};

// Below and above what the calling thread moves by itself, with ends on all sides of blocks.
constexpr std::size_t sizes[] = {1, 511, 4096, 4097, 262'144, 262'145, 1'048'576, 3'000'001};
constexpr std::size_t skews[] = {0, 1, 511, 4095, 4096};

TEST(CufileMoving, EveryMisalignmentOfAReadAndAWrite) {
    constexpr std::size_t most = 3'000'001, span = most + 2 * 4096 + 2 * room;
    const auto bytes = pattern(span, 1);
    const TempFile source(bytes), target(std::vector<unsigned char>(span, mark));
    const Descriptor from(source.path(), O_RDONLY), into(target.path(), O_RDWR);
    const Handle reading(from), writing(into);
    for (const bool gpu : {true, false}) {
        Memory memory(gpu, span);
        for (const std::size_t size : sizes)
            for (const std::size_t in_file : skews)
                for (const std::size_t in_memory : skews) {
                    const std::string what =
                        ::testing::PrintToString(std::vector<std::size_t>{gpu, size, in_file, in_memory});
                    std::fill_n(memory.get(), in_memory + size + 2 * room, mark);
                    unsigned char* const at = memory.get() + room + in_memory;
                    ASSERT_EQ(cuFileRead(reading, memory.get(), size, static_cast<off_t>(in_file),
                                         static_cast<off_t>(room + in_memory)),
                              static_cast<ssize_t>(size))
                        << what << sidestepCufileLastError();
                    ASSERT_TRUE(std::equal(at, at + size, bytes.begin() + static_cast<long>(in_file)))
                        << what;
                    ASSERT_TRUE(std::all_of(memory.get(), at, [](unsigned char byte) {
                        return byte == mark;
                    })) << what;
                    ASSERT_TRUE(std::all_of(at + size, at + size + room, [](unsigned char byte) {
                        return byte == mark;
                    })) << what;

                    ASSERT_EQ(cuFileWrite(writing, at, size, static_cast<off_t>(room + in_file), 0),
                              static_cast<ssize_t>(size))
                        << what << sidestepCufileLastError();
                    std::vector<unsigned char> written(size + 2);
                    ASSERT_EQ(::pread(into, written.data(), size + 2, static_cast<off_t>(room + in_file) - 1),
                              static_cast<ssize_t>(size) + 2);
                    ASSERT_TRUE(std::equal(at, at + size, written.begin() + 1)) << what;
                    ASSERT_EQ(written.front(), mark) << what;
                    ASSERT_EQ(written.back(), mark) << what;
                    const std::vector<unsigned char> clean(size, mark);
                    ASSERT_EQ(::pwrite(into, clean.data(), size, static_cast<off_t>(room + in_file)),
                              static_cast<ssize_t>(size));
                }
    }
}

TEST(CufileMoving, TheEndOfTheFile) {
    for (const bool gpu : {true, false})
        for (const std::size_t length : {std::size_t{1000}, std::size_t{600'000}, std::size_t{3'000'000}}) {
            const auto bytes = pattern(length, 2);
            const TempFile file(bytes);
            const Descriptor descriptor(file.path(), O_RDONLY);
            const Handle handle(descriptor);
            Memory memory(gpu, 2 * length);
            std::fill_n(memory.get(), 2 * length, mark);
            const auto end = static_cast<off_t>(length);
            EXPECT_EQ(cuFileRead(handle, memory.get(), 2 * length, 1, 0), end - 1);
            EXPECT_TRUE(std::equal(bytes.begin() + 1, bytes.end(), memory.get()));
            EXPECT_EQ(memory.get()[length - 1], mark);
            EXPECT_EQ(cuFileRead(handle, memory.get(), 2 * length, end, 0), 0);
            EXPECT_EQ(cuFileRead(handle, memory.get(), 2 * length, end + 5000, 0), 0);
            EXPECT_EQ(cuFileRead(handle, memory.get(), 2 * length, off_t{1} << 60, 0), 0);
            EXPECT_EQ(cuFileRead(handle, memory.get(), 0, 0, 0), 0);
            EXPECT_EQ(cuFileRead(handle, memory.get(), 2 * length, end - 1, 0), 1);
        }
}

// The calling thread reads as far as the page cache goes, and the engine the rest.
TEST(CufileMoving, AFileThatIsCachedInPart) {
    constexpr std::size_t size = 2'000'000;
    const auto bytes = pattern(size, 8);
    const TempFile file(bytes);
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle handle(descriptor);
    std::vector<unsigned char> warm(300'000);
    for (const bool gpu : {true, false})
        for (const std::size_t warmed : {std::size_t{0}, std::size_t{4096}, std::size_t{300'000}}) {
            ASSERT_EQ(::fsync(descriptor), 0);
            ASSERT_EQ(::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
            ASSERT_EQ(::posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM), 0);
            ASSERT_EQ(::pread(descriptor, warm.data(), warmed, 0), static_cast<ssize_t>(warmed));
            Memory memory(gpu, size);
            std::fill_n(memory.get(), size, mark);
            EXPECT_EQ(cuFileRead(handle, memory.get(), size, 0, 0), static_cast<ssize_t>(size))
                << sidestepCufileLastError();
            EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.get())) << gpu << " " << warmed;
        }
}

TEST(CufileMoving, WritesBeyondTheEndLeaveAHole) {
    for (const bool gpu : {true, false})
        for (const std::size_t size : {std::size_t{100}, std::size_t{4097}, std::size_t{700'000}}) {
            const TempFile file(pattern(10, 3));
            const Descriptor descriptor(file.path(), O_RDWR);
            const Handle handle(descriptor);
            const auto bytes = pattern(size, 4);
            Memory memory(gpu, size);
            std::copy(bytes.begin(), bytes.end(), memory.get());
            EXPECT_EQ(cuFileWrite(handle, memory.get(), size, 50'000, 0), static_cast<ssize_t>(size))
                << sidestepCufileLastError();
            EXPECT_EQ(cuFileWrite(handle, memory.get(), 0, 90'000'000, 0), 0);
            const auto content = file.content();
            ASSERT_EQ(content.size(), 50'000 + size);
            EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), content.begin() + 50'000));
            EXPECT_TRUE(std::all_of(content.begin() + 10, content.begin() + 50'000,
                                    [](unsigned char byte) { return byte == 0; }));
        }
}

TEST(CufileMoving, BeyondFourGibibytes) {
    constexpr off_t far = (off_t{5} << 30) + 3;
    const TempFile file;
    const Descriptor descriptor(file.path(), O_RDWR);
    ASSERT_EQ(::ftruncate(descriptor, far + 300'000), 0);
    const Handle handle(descriptor);
    const auto bytes = pattern(300'000, 5);
    const GpuMemory memory(0, 300'000);
    std::copy(bytes.begin(), bytes.end(), memory.get());
    EXPECT_EQ(cuFileWrite(handle, memory.get(), 300'000, far, 0), 300'000) << sidestepCufileLastError();
    std::fill_n(memory.get(), 300'000, mark);
    EXPECT_EQ(cuFileRead(handle, memory.get(), 300'000, far, 0), 300'000) << sidestepCufileLastError();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.get()));
    // More than 4 GiB asked for at once, of memory that is there but costs nothing until it is written.
    constexpr std::size_t large = (std::size_t{4} << 30) + 4096;
    void* const map =
        ::mmap(nullptr, large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(map, MAP_FAILED);
    EXPECT_EQ(cuFileRead(handle, map, large, far, 0), 300'000) << sidestepCufileLastError();
    EXPECT_EQ(cuFileRead(handle, map, 4096, far, off_t{1} << 32), 4096) << sidestepCufileLastError();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 4096,
                           static_cast<unsigned char*>(map) + (std::size_t{1} << 32)));
    ::munmap(map, large);
}

TEST(CufileMoving, PartsOfMemory) {
    const auto bytes = pattern(700'100, 6);
    const TempFile source(bytes), target;
    const Descriptor from(source.path(), O_RDONLY), into(target.path(), O_RDWR);
    const Handle reading(from), writing(into);
    const GpuMemory gpu(0, 400'000);
    std::vector<unsigned char> host(300'000), little(200);
    const CUfileIOVec_t parts[] = {
        {gpu.get(), 400'000}, {nullptr, 0}, {host.data(), 300'000}, {little.data(), 200}};
    EXPECT_EQ(cuFileReadv(reading, parts, 4, 0, 0), 700'100) << sidestepCufileLastError();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 400'000, gpu.get()));
    EXPECT_TRUE(std::equal(host.begin(), host.end(), bytes.begin() + 400'000));
    EXPECT_TRUE(std::equal(little.begin(), little.begin() + 100, bytes.begin() + 700'000));
    EXPECT_EQ(cuFileReadv(reading, parts, 4, 700'099, 0), 1);
    EXPECT_EQ(cuFileReadv(reading, parts, 0, 0, 0), 0);
    EXPECT_EQ(cuFileReadv(reading, nullptr, 1, 0, 0), -CU_FILE_INVALID_VALUE);
    EXPECT_EQ(cuFileReadv(reading, parts, 1, 0, 1), -CU_FILE_INVALID_VALUE);
    EXPECT_EQ(cuFileReadv(reading, parts, 1, 0, 0), 400'000);
    EXPECT_EQ(cuFileWritev(writing, parts, 3, 0, 0), 700'000) << sidestepCufileLastError();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 700'000, target.content().begin()));
    EXPECT_EQ(cuFileWritev(reading, parts, 1, 0, 0), -CU_FILE_INVALID_FILE_OPEN_FLAG);
    EXPECT_EQ(cuFileReadv(reading, nullptr, 0, -1, 0), -CU_FILE_INVALID_VALUE);
}

TEST(CufileMoving, AFullDeviceIsSaidByErrno) {
    const Descriptor full("/dev/full", O_RDWR);
    CUfileHandle_t handle = nullptr;
    CUfileDescr_t described = description(full);
    EXPECT_CUFILE(cuFileHandleRegister(&handle, &described), CU_FILE_INVALID_FILE_TYPE);
    // Memory that is not there: the kernel says so, and nothing crashes.
    const TempFile file(pattern(1'000'000, 7));
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle good(descriptor);
    void* const gone = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = 0;
    EXPECT_EQ(cuFileRead(good, gone, 4096, 0, 0), -1);
    EXPECT_EQ(errno, EFAULT);
    errno = 0;
    EXPECT_EQ(cuFileWrite(good, gone, 4096, 0, 0), -1);
    EXPECT_EQ(errno, EFAULT);
    ::munmap(gone, 4096);
}

}  // namespace
