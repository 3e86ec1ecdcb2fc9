// Files by their handles.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dirent.h>

#include <algorithm>
#include <memory>

#include "tests/cufile/world.hpp"

namespace {

using namespace sidestep::cufile_test;

int open_descriptors() {
    int count = 0;
    DIR* folder = ::opendir("/proc/self/fd");
    while (folder != nullptr && ::readdir(folder) != nullptr) ++count;
    if (folder != nullptr) ::closedir(folder);
    return count;
}

TEST(CufileFiles, TheirDescriptorIsTheirOwn) {
    const auto bytes = pattern(5000, 1);
    const TempFile file(bytes);
    CUfileHandle_t handle = nullptr;
    {
        const Descriptor descriptor(file.path(), O_RDWR | O_DIRECT);
        CUfileDescr_t described = description(descriptor);
        ASSERT_CUFILE(cuFileHandleRegister(&handle, &described), CU_FILE_SUCCESS);
        ::lseek(descriptor, 100, SEEK_SET);
        std::vector<unsigned char> read(5000);
        EXPECT_EQ(cuFileRead(handle, read.data(), 5000, 0, 0), 5000) << sidestepCufileLastError();
        EXPECT_EQ(read, bytes);
        EXPECT_EQ(::lseek(descriptor, 0, SEEK_CUR), 100);
    }
    // Closed by the caller, and the name gone: the handle lives on.
    ::unlink(file.path().c_str());
    std::vector<unsigned char> read(5000);
    EXPECT_EQ(cuFileRead(handle, read.data(), 5000, 0, 0), 5000) << sidestepCufileLastError();
    EXPECT_EQ(read, bytes);
    cuFileHandleDeregister(handle);
    EXPECT_EQ(cuFileRead(handle, read.data(), 5000, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
}

TEST(CufileFiles, ANumberThatWasGivenOutAgainIsAnotherFile) {
    const TempFile first(pattern(10, 1)), second(pattern(10, 2));
    int number = ::open(first.path().c_str(), O_RDONLY);
    CUfileDescr_t described = description(number);
    CUfileHandle_t old = nullptr, handle = nullptr;
    ASSERT_CUFILE(cuFileHandleRegister(&old, &described), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileHandleRegister(&handle, &described), CU_FILE_HANDLE_ALREADY_REGISTERED);
    const int other = ::open(second.path().c_str(), O_RDONLY);
    ASSERT_EQ(::dup2(other, number), number);
    EXPECT_CUFILE(cuFileHandleRegister(&handle, &described), CU_FILE_SUCCESS);
    cuFileHandleDeregister(old);
    EXPECT_CUFILE(cuFileHandleRegister(&old, &described), CU_FILE_HANDLE_ALREADY_REGISTERED);
    cuFileHandleDeregister(handle);
    ::close(number);
    ::close(other);
}

TEST(CufileFiles, AThousandAtATime) {
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    constexpr std::size_t count = 1000;
    if (limit.rlim_cur < 2 * count + 100)
        GTEST_SKIP() << "only " << limit.rlim_cur << " descriptors are allowed here";
    cuFileDriverOpen();
    const int before = open_descriptors();
    {
        std::vector<std::unique_ptr<TempFile>> files;
        std::vector<std::unique_ptr<Descriptor>> descriptors;
        std::vector<std::unique_ptr<Handle>> handles;
        for (std::size_t i = 0; i < count; ++i) {
            files.push_back(std::make_unique<TempFile>(pattern(64, static_cast<unsigned>(i))));
            descriptors.push_back(std::make_unique<Descriptor>(files.back()->path(), O_RDONLY));
            handles.push_back(std::make_unique<Handle>(*descriptors.back()));
        }
        for (std::size_t i = count; i-- > 0;) {
            std::vector<unsigned char> read(64);
            ASSERT_EQ(cuFileRead(*handles[i], read.data(), 64, 0, 0), 64) << sidestepCufileLastError();
            ASSERT_EQ(read, pattern(64, static_cast<unsigned>(i)));
        }
    }
    EXPECT_EQ(open_descriptors(), before);
}

// Root may read everything, so a test that runs as root is another user meanwhile, on all threads.
TEST(CufileFiles, WhoMayOnlyWriteWritesAnySize) {
    const TempFile file(pattern(2'000'000, 1));
    ASSERT_EQ(::chmod(file.path().c_str(), 0222), 0);
    const auto bytes = pattern(1 << 20, 2);
    const GpuMemory memory(0, bytes.size());
    std::copy(bytes.begin(), bytes.end(), memory.get());
    const Descriptor descriptor(file.path(), O_WRONLY);
    const Handle handle(descriptor);
    const bool root = ::geteuid() == 0;
    ASSERT_EQ(root ? ::seteuid(65534) : 0, 0);
    EXPECT_LT(::open(file.path().c_str(), O_RDONLY), 0);
    for (const std::size_t size : {std::size_t{64} << 10, std::size_t{1} << 20})
        for (const auto* from : {bytes.data(), static_cast<const unsigned char*>(memory.get())})
            for (const off_t at : {4096, 1'500'001})
                EXPECT_EQ(cuFileWrite(handle, from, size, at, 0), static_cast<ssize_t>(size))
                    << sidestepCufileLastError();
    ASSERT_EQ(root ? ::seteuid(0) : ::chmod(file.path().c_str(), 0600), 0);
    const auto written = file.content();
    ASSERT_EQ(written.size(), 1'500'001 + bytes.size());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), written.begin() + 4096));
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), written.begin() + 1'500'001));
}

TEST(CufileFiles, WithoutAnotherDescriptorItIsSaid) {
    const TempFile file(pattern(10, 1));
    const Descriptor descriptor(file.path(), O_RDONLY);
    cuFileDriverOpen();
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = static_cast<rlim_t>(static_cast<int>(descriptor)) + 1;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    CUfileHandle_t handle = nullptr;
    CUfileDescr_t described = description(descriptor);
    EXPECT_CUFILE(cuFileHandleRegister(&handle, &described), CU_FILE_GETNEWFD_FAILED);
    limit.rlim_cur = before;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_CUFILE(cuFileHandleRegister(&handle, &described), CU_FILE_SUCCESS);
    cuFileHandleDeregister(handle);
}

}  // namespace
