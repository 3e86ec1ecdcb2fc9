// Reads and writes in the order of a CUDA stream, on GPUs that are there.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "tests/cuda_by_name.hpp"
#include "tests/cufile/world.hpp"

namespace sidestep::cufile_test {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr int capture_unsupported = 900;  // of cuda.h

class CufileStream : public test::OnCuda {
protected:
    void SetUp() override {
        OnCuda::SetUp();
        if (IsSkipped()) return;
        choose(0);
        ASSERT_EQ(cuda.make_stream(&stream, 1), 0);
        ASSERT_EQ(cuda.allocate(&gpu, 4 * MiB), 0);
        ASSERT_EQ(cuda.allocate_host(&pinned, 4 * MiB, 0), 0);
        base = reinterpret_cast<void*>(gpu);
    }
    void TearDown() override {
        if (stream == nullptr) return;
        for (auto& gate : gates) gate = true;
        EXPECT_EQ(cuda.synchronize(stream), 0);
        EXPECT_EQ(cuda.end_stream(stream), 0);
        EXPECT_EQ(cuda.release(gpu), 0);
        EXPECT_EQ(cuda.release_host(pinned), 0);
        while (cuFileUseCount() > 0) EXPECT_CUFILE(cuFileDriverClose(), CU_FILE_SUCCESS);
    }
    // Holds the stream until what it answers is set.
    std::atomic<bool>& hold() {
        std::atomic<bool>& gate = gates.emplace_back(false);
        EXPECT_EQ(cuda.call_host(
                      stream,
                      [](void* open) {
                          while (!*static_cast<std::atomic<bool>*>(open))
                              std::this_thread::sleep_for(std::chrono::milliseconds(1));
                      },
                      &gate),
                  0);
        return gate;
    }
    // What lies there when the stream has come to it.
    std::vector<unsigned char> fetch(std::size_t offset, std::size_t bytes) {
        EXPECT_EQ(cuda.copy(reinterpret_cast<std::uintptr_t>(pinned), gpu + offset, bytes, stream), 0);
        EXPECT_EQ(cuda.synchronize(stream), 0);
        const auto* seen = static_cast<unsigned char*>(pinned);
        return {seen, seen + bytes};
    }

    CUstream stream = nullptr;
    unsigned long long gpu = 0;
    void* base = nullptr;    // the same
    void* pinned = nullptr;  // of the host, as large
    std::deque<std::atomic<bool>> gates;
};

std::vector<unsigned char> part(const std::vector<unsigned char>& whole, std::size_t from,
                                std::size_t bytes) {
    return {whole.begin() + static_cast<long>(from), whole.begin() + static_cast<long>(from + bytes)};
}

// A file, and what a call that reads it is given.
struct Reading {
    const TempFile file{pattern(MiB, 1)};
    const Descriptor descriptor{file.path(), O_RDONLY};
    const Handle handle{descriptor};
    std::size_t size = 4096;
    off_t at = 0;
    ssize_t read = -7;
};

TEST_F(CufileStream, ParametersAreReadWhenTheStreamComesToThem) {
    const auto content = pattern(3 * MiB, 1);
    const TempFile file(content);
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    for (const bool registered : {false, true}) {
        if (registered) {
            ASSERT_CUFILE(cuFileStreamRegister(stream, 0xf), CU_FILE_SUCCESS);
        }
        for (const std::size_t bytes : {std::size_t{1000}, 2 * MiB}) {
            std::size_t size = 1;
            off_t in_file = 0, in_memory = 0;
            ssize_t read = -7;
            std::atomic<bool>& gate = hold();
            ASSERT_CUFILE(cuFileReadAsync(handle, base, &size, &in_file, &in_memory, &read, stream),
                          CU_FILE_SUCCESS);
            EXPECT_EQ(read, -7);
            size = bytes;
            in_file = 12345;
            in_memory = 77;
            gate = true;
            // Behind it on the stream: the bytes are there.
            EXPECT_TRUE(fetch(77, bytes) == part(content, 12345, bytes));
            EXPECT_EQ(read, static_cast<ssize_t>(bytes));
        }
    }
    EXPECT_CUFILE(cuFileStreamDeregister(stream), CU_FILE_SUCCESS);
}

TEST_F(CufileStream, AWriteFollowsWhatIsBeforeItOnTheStream) {
    const auto content = pattern(2 * MiB, 2);
    const TempFile file(std::vector<unsigned char>(10));
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle handle(descriptor);
    std::size_t size = 2 * MiB - 5;
    off_t in_file = 3, in_memory = 5;
    ssize_t written = -7;
    std::atomic<bool>& gate = hold();
    std::copy(content.begin(), content.end(), static_cast<unsigned char*>(pinned));
    ASSERT_EQ(cuda.copy(gpu, reinterpret_cast<std::uintptr_t>(pinned), content.size(), stream), 0);
    ASSERT_CUFILE(cuFileWriteAsync(handle, base, &size, &in_file, &in_memory, &written, stream),
                  CU_FILE_SUCCESS);
    gate = true;
    ASSERT_EQ(cuda.synchronize(stream), 0);
    EXPECT_EQ(written, static_cast<ssize_t>(size));
    EXPECT_TRUE(part(file.content(), 3, size) == part(content, 5, size));
}

TEST_F(CufileStream, EndsThatAreNoSuccess) {
    const TempFile file(pattern(MiB, 1));
    const Descriptor descriptor(file.path(), O_RDONLY);
    auto handle = std::make_unique<Handle>(descriptor);
    std::size_t size = 4096;
    off_t at_end = MiB - 100, behind = 2 * MiB, before = -1, in_memory = 0;
    ssize_t ends[5] = {-7, -7, -7, -7, -7};
    std::atomic<bool>& gate = hold();
    EXPECT_CUFILE(cuFileReadAsync(*handle, base, &size, &at_end, &in_memory, &ends[0], stream),
                  CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileReadAsync(*handle, base, &size, &behind, &in_memory, &ends[1], stream),
                  CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileReadAsync(*handle, base, &size, &before, &in_memory, &ends[2], stream),
                  CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileWriteAsync(*handle, base, &size, &behind, &in_memory, &ends[3], stream),
                  CU_FILE_SUCCESS);
    gate = true;
    ASSERT_EQ(cuda.synchronize(stream), 0);
    const ssize_t expected[4] = {100, 0, -CU_FILE_INVALID_VALUE, -CU_FILE_INVALID_FILE_OPEN_FLAG};
    for (int i = 0; i < 4; ++i) EXPECT_EQ(ends[i], expected[i]) << i;
    std::atomic<bool>& second = hold();
    EXPECT_CUFILE(cuFileReadAsync(*handle, base, &size, &at_end, &in_memory, &ends[4], stream),
                  CU_FILE_SUCCESS);
    handle.reset();
    second = true;
    ASSERT_EQ(cuda.synchronize(stream), 0);
    EXPECT_EQ(ends[4], -CU_FILE_HANDLE_NOT_REGISTERED);
}

TEST_F(CufileStream, OnTheNullStreamItIsDoneAtOnce) {
    const auto content = pattern(2 * MiB, 1);
    const TempFile file(content);
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle handle(descriptor);
    std::size_t size = MiB;
    off_t in_file = 5, in_memory = 0;
    ssize_t read = -7;
    ASSERT_CUFILE(cuFileReadAsync(handle, base, &size, &in_file, &in_memory, &read, nullptr),
                  CU_FILE_SUCCESS);
    EXPECT_EQ(read, static_cast<ssize_t>(MiB));
    EXPECT_TRUE(fetch(0, MiB) == part(content, 5, MiB));
}

TEST_F(CufileStream, ACapturedStreamIsRefused) {
    Reading given;
    auto& [file, descriptor, handle, size, offset, read] = given;
    ASSERT_EQ(cuda.begin_capture(stream, 1), 0);
    const CUfileError_t done = cuFileReadAsync(handle, base, &size, &offset, &offset, &read, stream);
    EXPECT_EQ(done.err, CU_FILE_ASYNC_NOT_SUPPORTED);
    EXPECT_EQ(done.cu_err, capture_unsupported);
    void* graph = nullptr;
    EXPECT_EQ(cuda.end_capture(stream, &graph), 0);
    EXPECT_EQ(read, -7);
    ASSERT_CUFILE(cuFileReadAsync(handle, base, &size, &offset, &offset, &read, stream), CU_FILE_SUCCESS);
    ASSERT_EQ(cuda.synchronize(stream), 0);
    EXPECT_EQ(read, 4096);
}

// PyTorch captures so, while other threads read. The first call on a GPU allocates there, hence one that no other test uses.
TEST_F(CufileStream, ACaptureOfAnotherStreamGoesOn) {
    Reading given;
    auto& [file, descriptor, handle, size, offset, read] = given;
    choose(devices - 1);
    CUstream reading = nullptr, captured = nullptr;
    unsigned long long memory = 0;
    ASSERT_EQ(cuda.make_stream(&reading, 1), 0);
    ASSERT_EQ(cuda.make_stream(&captured, 1), 0);
    ASSERT_EQ(cuda.allocate(&memory, size), 0);
    ASSERT_EQ(cuda.begin_capture(captured, 0), 0);
    EXPECT_CUFILE(
        cuFileReadAsync(handle, reinterpret_cast<void*>(memory), &size, &offset, &offset, &read, reading),
        CU_FILE_SUCCESS);
    void* graph = nullptr;
    EXPECT_EQ(cuda.end_capture(captured, &graph), 0);
    EXPECT_EQ(cuda.synchronize(reading), 0);
    EXPECT_EQ(read, 4096);
    EXPECT_EQ(cuda.release(memory), 0);
    for (CUstream each : {reading, captured}) EXPECT_EQ(cuda.end_stream(each), 0);
    choose(0);
}

TEST_F(CufileStream, Refused) {
    Reading given;
    auto& [file, descriptor, handle, size, at, read] = given;
    for (CUstream on : {stream, CUstream{nullptr}}) {
        EXPECT_CUFILE(cuFileReadAsync(nullptr, base, &size, &at, &at, &read, on), CU_FILE_INVALID_VALUE);
        EXPECT_CUFILE(cuFileReadAsync(handle, nullptr, &size, &at, &at, &read, on), CU_FILE_INVALID_VALUE);
        EXPECT_CUFILE(cuFileReadAsync(handle, base, nullptr, &at, &at, &read, on), CU_FILE_INVALID_VALUE);
        EXPECT_CUFILE(cuFileReadAsync(handle, base, &size, nullptr, &at, &read, on), CU_FILE_INVALID_VALUE);
        EXPECT_CUFILE(cuFileReadAsync(handle, base, &size, &at, nullptr, &read, on), CU_FILE_INVALID_VALUE);
        EXPECT_CUFILE(cuFileReadAsync(handle, base, &size, &at, &at, nullptr, on), CU_FILE_INVALID_VALUE);
        EXPECT_CUFILE(cuFileReadAsync(reinterpret_cast<void*>(0x1234), base, &size, &at, &at, &read, on),
                      CU_FILE_HANDLE_NOT_REGISTERED);
    }
    EXPECT_EQ(read, -7);
    EXPECT_CUFILE(cuFileStreamRegister(stream, 16), CU_FILE_INVALID_VALUE);
    EXPECT_CUFILE(cuFileStreamRegister(stream, 0), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileStreamRegister(stream, 0), CU_FILE_INVALID_VALUE);
    EXPECT_CUFILE(cuFileStreamDeregister(stream), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileStreamDeregister(stream), CU_FILE_INVALID_VALUE);
    for (int i = 0; i < 2; ++i) EXPECT_CUFILE(cuFileStreamRegister(nullptr, 0), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileStreamDeregister(nullptr), CU_FILE_SUCCESS);
}

TEST_F(CufileStream, ADefaultStreamNeedsAContext) {
    Reading given;
    auto& [file, descriptor, handle, size, at, read] = given;
    const auto legacy = reinterpret_cast<CUstream>(1);  // of cuda.h: CU_STREAM_LEGACY
    std::thread([&] {
        EXPECT_CUFILE(cuFileReadAsync(handle, base, &size, &at, &at, &read, legacy),
                      CU_FILE_INVALID_CONTEXT_ERROR);
    }).join();
    EXPECT_EQ(read, -7);
    ASSERT_CUFILE(cuFileReadAsync(handle, base, &size, &at, &at, &read, legacy), CU_FILE_SUCCESS);
    ASSERT_EQ(cuda.synchronize(legacy), 0);
    EXPECT_EQ(read, 4096);
}

// More than a stream may have in flight, from several threads on streams of their own and on one that they share.
TEST_F(CufileStream, ManyOnManyStreams) {
    const auto content = pattern(MiB, 1);
    const TempFile file(content);
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    constexpr int threads = 4, reads = 200;
    void* context = nullptr;
    ASSERT_EQ(cuda.retain(&context, 0), 0);
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t)
        all.emplace_back([&, t] {
            ASSERT_EQ(cuda.set_current(context), 0);
            CUstream own = nullptr;
            ASSERT_EQ(cuda.make_stream(&own, 1), 0);
            std::vector<std::size_t> sizes(reads, 1000);
            std::vector<off_t> in_file(reads), in_memory(reads);
            std::vector<ssize_t> ends(reads, -7);
            for (int i = 0; i < reads; ++i) {
                const auto at = static_cast<std::size_t>(i);
                in_file[at] = 1000 * i + t;
                in_memory[at] = static_cast<off_t>(MiB) * t + 1000 * i;
                EXPECT_CUFILE(cuFileReadAsync(handle, base, &sizes[at], &in_file[at], &in_memory[at],
                                              &ends[at], i % 2 == 0 ? own : stream),
                              CU_FILE_SUCCESS);
            }
            EXPECT_EQ(cuda.synchronize(own), 0);
            EXPECT_EQ(cuda.synchronize(stream), 0);
            EXPECT_EQ(ends, std::vector<ssize_t>(reads, 1000));
            EXPECT_EQ(cuda.end_stream(own), 0);
        });
    for (auto& thread : all) thread.join();
    for (std::size_t t = 0; t < threads; ++t)
        EXPECT_TRUE(fetch(MiB * t, 1000 * reads) == part(content, t, 1000 * reads));
}

TEST_F(CufileStream, WhatComesAfterTheClosing) {
    Reading given;
    auto& [file, descriptor, handle, size, at, read] = given;
    std::atomic<bool>& gate = hold();
    ASSERT_CUFILE(cuFileReadAsync(handle, base, &size, &at, &at, &read, stream), CU_FILE_SUCCESS);
    while (cuFileUseCount() > 0) ASSERT_CUFILE(cuFileDriverClose(), CU_FILE_SUCCESS);
    gate = true;
    ASSERT_EQ(cuda.synchronize(stream), 0);
    EXPECT_EQ(read, -CU_FILE_DRIVER_CLOSING);
    EXPECT_EQ(cuFileUseCount(), 0);
}

}  // namespace
}  // namespace sidestep::cufile_test
