// Many threads at a time, and handles that go meanwhile.
#include <atomic>
#include <thread>

#include "tests/cufile/world.hpp"

namespace {

using namespace sidestep::cufile_test;

TEST(CufileThreads, ManyOnOneHandle) {
    constexpr std::size_t threads = 16, part = 300'000, rounds = 6;
    const auto bytes = pattern(threads * part, 1);
    const TempFile source(bytes), target;
    const Descriptor from(source.path(), O_RDONLY), into(target.path(), O_RDWR);
    const Handle reading(from), writing(into);
    std::atomic<int> wrong{0};
    std::vector<std::thread> all;
    for (std::size_t thread = 0; thread < threads; ++thread)
        all.emplace_back([&, thread] {
            const GpuMemory memory(static_cast<int>(thread % 8), part);
            // Small ones and large ones in turns; the target grows from all sides at once.
            for (std::size_t round = 0; round < rounds; ++round) {
                const std::size_t size = round % 2 == 0 ? part : 1000;
                const auto offset = static_cast<off_t>(thread * part);
                std::fill_n(memory.get(), size, static_cast<unsigned char>(0xee));
                if (cuFileRead(reading, memory.get(), size, offset, 0) != static_cast<ssize_t>(size)) ++wrong;
                if (!std::equal(memory.get(), memory.get() + size, bytes.begin() + offset)) ++wrong;
                if (cuFileWrite(writing, memory.get(), size, offset, 0) != static_cast<ssize_t>(size))
                    ++wrong;
            }
        });
    for (std::thread& thread : all) thread.join();
    EXPECT_EQ(wrong, 0) << sidestepCufileLastError();
    EXPECT_TRUE(target.content() == bytes);
}

// So many that each reads what the page cache holds by itself, however much it is.
TEST(CufileThreads, LargeReadsBesideEachOther) {
    constexpr std::size_t threads = 8, size = 5'000'001, rounds = 4;
    const auto bytes = pattern(size + threads, 3);
    const TempFile file(bytes);
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    std::atomic<int> wrong{0};
    std::vector<std::thread> all;
    for (std::size_t thread = 0; thread < threads; ++thread)
        all.emplace_back([&, thread] {
            // Every other one reads into host memory.
            const GpuMemory gpu(static_cast<int>(thread), size);
            std::vector<unsigned char> host(size);
            unsigned char* const memory = thread % 2 == 0 ? gpu.get() : host.data();
            for (std::size_t round = 0; round < rounds; ++round) {
                std::fill_n(memory, size, static_cast<unsigned char>(0xee));
                if (cuFileRead(handle, memory, size, static_cast<off_t>(thread), 0) !=
                    static_cast<ssize_t>(size))
                    ++wrong;
                if (!std::equal(memory, memory + size, bytes.begin() + static_cast<long>(thread))) ++wrong;
            }
        });
    for (std::thread& thread : all) thread.join();
    EXPECT_EQ(wrong, 0) << sidestepCufileLastError();
}

TEST(CufileThreads, AHandleThatGoesDuringReads) {
    const auto bytes = pattern(2'000'000, 2);
    const TempFile file(bytes);
    cuFileDriverOpen();
    for (int round = 0; round < 30; ++round) {
        const Descriptor descriptor(file.path(), O_RDONLY);
        CUfileDescr_t described = description(descriptor);
        CUfileHandle_t handle = nullptr;
        ASSERT_CUFILE(cuFileHandleRegister(&handle, &described), CU_FILE_SUCCESS);
        std::atomic<int> begun{0}, wrong{0};
        std::vector<std::thread> all;
        for (int thread = 0; thread < 4; ++thread)
            all.emplace_back([&, thread] {
                const std::size_t size = thread % 2 == 0 ? 2'000'000 : 5000;
                std::vector<unsigned char> memory(size);
                for (;;) {
                    const ssize_t read = cuFileRead(handle, memory.data(), size, 0, 0);
                    ++begun;
                    if (read == -CU_FILE_HANDLE_NOT_REGISTERED) return;
                    if (read != static_cast<ssize_t>(size) ||
                        !std::equal(memory.begin(), memory.end(), bytes.begin()))
                        ++wrong;
                }
            });
        while (begun < 4) std::this_thread::yield();
        cuFileHandleDeregister(handle);
        for (std::thread& thread : all) thread.join();
        ASSERT_EQ(wrong, 0);
    }
}

TEST(CufileThreads, OpenedAndClosedByAll) {
    while (cuFileUseCount() > 0) cuFileDriverClose();
    std::vector<std::thread> all;
    for (int thread = 0; thread < 8; ++thread)
        all.emplace_back([] {
            for (int round = 0; round < 200; ++round) {
                EXPECT_CUFILE(cuFileDriverOpen(), CU_FILE_SUCCESS);
                EXPECT_CUFILE(cuFileDriverClose(), CU_FILE_SUCCESS);
            }
        });
    for (std::thread& thread : all) thread.join();
    EXPECT_EQ(cuFileUseCount(), 0);
}

}  // namespace
