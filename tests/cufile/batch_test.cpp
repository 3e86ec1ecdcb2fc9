// Batches: every entry's own end, bounded room, and memory that is let go of.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <thread>

#include "tests/cufile/world.hpp"

namespace sidestep::cufile_test {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

CUfileIOParams_t entry(CUfileHandle_t handle, int opcode, void* base, std::size_t size, off_t in_file,
                       off_t in_memory = 0, std::uintptr_t cookie = 0) {
    CUfileIOParams_t made{};
    made.mode = CUFILE_BATCH;
    made.u.batch = {base, in_file, in_memory, size};
    made.fh = handle;
    made.opcode = opcode;
    made.cookie = reinterpret_cast<void*>(cookie);
    return made;
}

struct Ended {
    int status = 0;
    ssize_t result = 0;
    bool operator==(const Ended&) const = default;
    friend void PrintTo(const Ended& ended, std::ostream* out) {
        *out << "status " << ended.status << ", result " << ended.result;
    }
};

class Batch {
public:
    explicit Batch(unsigned room) { EXPECT_CUFILE(cuFileBatchIOSetUp(&handle_, room), CU_FILE_SUCCESS); }
    ~Batch() { cuFileBatchIODestroy(handle_); }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    operator CUfileBatchHandle_t() const { return handle_; }

    CUfileError_t submit(std::vector<CUfileIOParams_t> entries) {
        return cuFileBatchIOSubmit(handle_, static_cast<unsigned>(entries.size()), entries.data(), 0);
    }
    // Waits for so many, by cookie.
    std::map<std::uintptr_t, Ended> collect(unsigned fewest) {
        std::vector<CUfileIOEvents_t> events(256);
        unsigned count = 256;
        EXPECT_CUFILE(cuFileBatchIOGetStatus(handle_, fewest, &count, events.data(), nullptr),
                      CU_FILE_SUCCESS);
        std::map<std::uintptr_t, Ended> ended;
        for (unsigned i = 0; i < count; ++i)
            ended[reinterpret_cast<std::uintptr_t>(events[i].cookie)] = {events[i].status,
                                                                         static_cast<ssize_t>(events[i].ret)};
        EXPECT_EQ(ended.size(), count) << "a cookie twice";
        return ended;
    }

private:
    CUfileBatchHandle_t handle_ = nullptr;
};

// Calls open the driver; each test leaves it as it found it.
class CufileBatch : public ::testing::Test {
protected:
    void TearDown() override {
        while (cuFileUseCount() > 0) EXPECT_CUFILE(cuFileDriverClose(), CU_FILE_SUCCESS);
    }
};

bool same(const std::vector<unsigned char>& whole, std::size_t from, const unsigned char* bytes,
          std::size_t size) {
    return std::equal(whole.begin() + static_cast<long>(from), whole.begin() + static_cast<long>(from + size),
                      bytes);
}

TEST_F(CufileBatch, ReadsAndWritesOfGpusAndTheHost) {
    const auto content = pattern(4 * MiB + 100, 1);
    const TempFile source(content), target(std::vector<unsigned char>(3 * MiB));
    const Descriptor from(source.path(), O_RDONLY), into(target.path(), O_RDWR);
    const Handle reading(from), writing(into);
    const GpuMemory read_gpu(0, 3 * MiB), written_gpu(1, 2 * MiB);
    std::vector<unsigned char> read_host(3 * MiB), written_host = pattern(2 * MiB, 2);
    const auto for_gpu = pattern(2 * MiB, 3);
    std::copy(for_gpu.begin(), for_gpu.end(), written_gpu.get());

    const struct {
        CUfileIOParams_t entry;
        ssize_t result;
    } table[] = {
        {entry(reading, CUFILE_READ, read_gpu.get(), 2 * MiB, 0), 2 * MiB},
        {entry(reading, CUFILE_READ, read_gpu.get(), 1000, 5, 2 * MiB), 1000},  // little, unaligned
        {entry(reading, CUFILE_READ, read_host.data(), 2 * MiB, 12345), 2 * MiB},
        {entry(reading, CUFILE_READ, read_host.data(), MiB, 4 * MiB, 2 * MiB), 100},  // short: the file ends
        {entry(reading, CUFILE_READ, read_host.data(), 4096, 8 * MiB), 0},            // behind its end
        {entry(reading, CUFILE_READ, read_host.data(), 0, 0), 0},
        {entry(writing, CUFILE_WRITE, written_gpu.get(), MiB, 0, MiB), MiB},
        {entry(writing, CUFILE_WRITE, written_host.data(), MiB + 7, MiB, 3), MiB + 7},
    };
    Batch batch(std::size(table));
    std::vector<CUfileIOParams_t> entries;
    for (const auto& row : table) {
        entries.push_back(row.entry);
        entries.back().cookie = reinterpret_cast<void*>(entries.size());
    }
    ASSERT_CUFILE(batch.submit(entries), CU_FILE_SUCCESS);
    const auto ended = batch.collect(std::size(table));
    for (std::size_t i = 0; i < std::size(table); ++i)
        EXPECT_EQ(ended.at(i + 1), (Ended{CUFILE_COMPLETE, table[i].result})) << "row " << i;
    EXPECT_TRUE(same(content, 0, read_gpu.get(), 2 * MiB));
    EXPECT_TRUE(same(content, 5, read_gpu.get() + 2 * MiB, 1000));
    EXPECT_TRUE(same(content, 12345, read_host.data(), 2 * MiB));
    EXPECT_TRUE(same(content, 4 * MiB, read_host.data() + 2 * MiB, 100));
    EXPECT_EQ(read_host[2 * MiB + 100], 0) << "written behind the file's end";
    const auto written = target.content();
    EXPECT_TRUE(same(written, 0, for_gpu.data() + MiB, MiB));
    EXPECT_TRUE(same(written, MiB, written_host.data() + 3, MiB + 7));
}

TEST_F(CufileBatch, WhatIsWrongWithOneEntryIsItsOwnEnd) {
    const TempFile file(pattern(MiB, 1));
    const Descriptor both(file.path(), O_RDWR), read_only(file.path(), O_RDONLY),
        write_only(file.path(), O_WRONLY);
    const Handle good(both), reading(read_only), writing(write_only);
    std::vector<unsigned char> memory(2 * MiB), registered(MiB);
    ASSERT_CUFILE(cuFileBufRegister(registered.data(), MiB, 0), CU_FILE_SUCCESS);
    void* const nowhere = ::mmap(nullptr, MiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(nowhere, MAP_FAILED);
    const struct {
        const char* what;
        CUfileIOParams_t entry;
        ssize_t result;
    } table[] = {
        {"no opcode", entry(good, 2, memory.data(), 4096, 0), -EINVAL},
        {"null memory", entry(good, CUFILE_READ, nullptr, 4096, 0), -CU_FILE_INVALID_VALUE},
        {"before the file", entry(good, CUFILE_READ, memory.data(), 4096, -1), -CU_FILE_INVALID_VALUE},
        {"before the memory", entry(good, CUFILE_READ, memory.data(), 4096, 0, -1), -CU_FILE_INVALID_VALUE},
        {"read of one to write", entry(writing, CUFILE_READ, memory.data(), 4096, 0),
         -CU_FILE_INVALID_FILE_OPEN_FLAG},
        {"write of one to read", entry(reading, CUFILE_WRITE, memory.data(), 4096, 0),
         -CU_FILE_INVALID_FILE_OPEN_FLAG},
        {"past what is registered", entry(good, CUFILE_READ, registered.data(), 4096, 0, MiB - 100),
         -CU_FILE_INVALID_MAPPING_RANGE},
        {"memory that nobody has", entry(good, CUFILE_READ, nowhere, 4096, 0), -EFAULT},
    };
    for (const auto& row : table) {
        Batch batch(3);
        auto wrong = row.entry;
        wrong.cookie = reinterpret_cast<void*>(2);
        ASSERT_CUFILE(batch.submit({entry(good, CUFILE_READ, memory.data(), MiB, 0, 0, 1), wrong,
                                    entry(good, CUFILE_READ, memory.data(), 4096, 0, MiB, 3)}),
                      CU_FILE_SUCCESS);
        const auto ended = batch.collect(3);
        EXPECT_EQ(ended.at(1), (Ended{CUFILE_COMPLETE, MiB})) << row.what;
        EXPECT_EQ(ended.at(2), (Ended{CUFILE_FAILED, row.result})) << row.what;
        EXPECT_EQ(ended.at(3), (Ended{CUFILE_COMPLETE, 4096})) << row.what;
    }
    ::munmap(nowhere, MiB);
    EXPECT_CUFILE(cuFileBufDeregister(registered.data()), CU_FILE_SUCCESS);
}

TEST_F(CufileBatch, ASubmissionThatIsRefusedRunsNothing) {
    const TempFile file(pattern(MiB, 1));
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle handle(descriptor);
    std::vector<unsigned char> memory(MiB, 7);
    const auto good = entry(handle, CUFILE_READ, memory.data(), 4096, 0);
    auto no_mode = good, no_file = good;
    no_mode.mode = 0;
    no_file.fh = reinterpret_cast<void*>(0x1234);
    Batch batch(4);
    const auto refused = CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR;
    EXPECT_CUFILE(batch.submit({good, good, good, good, good}), refused);
    EXPECT_CUFILE(batch.submit({good, no_mode}), refused);
    EXPECT_CUFILE(batch.submit({good, no_file}), refused);
    EXPECT_CUFILE(batch.submit({}), refused);
    EXPECT_CUFILE(cuFileBatchIOSubmit(batch, 1, nullptr, 0), refused);
    EXPECT_CUFILE(cuFileBatchIOSubmit(nullptr, 1, const_cast<CUfileIOParams_t*>(&good), 0), refused);
    EXPECT_TRUE(batch.collect(0).empty());
    EXPECT_EQ(memory, std::vector<unsigned char>(MiB, 7));
    CUfileBatchHandle_t none = nullptr;
    EXPECT_CUFILE(cuFileBatchIOSetUp(&none, 0), CU_FILE_INVALID_VALUE);
    EXPECT_CUFILE(cuFileBatchIOSetUp(&none, 129), CU_FILE_INVALID_VALUE);
    EXPECT_CUFILE(cuFileBatchIOSetUp(nullptr, 1), CU_FILE_INVALID_VALUE);
}

TEST_F(CufileBatch, RoomComesBackWithWhatIsCollected) {
    const TempFile file(pattern(MiB, 1));
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    std::vector<unsigned char> memory(MiB);
    const auto good = [&](std::uintptr_t cookie) {
        return entry(handle, CUFILE_READ, memory.data(), 4096, 0, static_cast<off_t>(4096 * cookie), cookie);
    };
    Batch batch(4);
    ASSERT_CUFILE(batch.submit({good(0), good(1), good(2)}), CU_FILE_SUCCESS);
    ASSERT_CUFILE(batch.submit({good(3)}), CU_FILE_SUCCESS);
    EXPECT_CUFILE(batch.submit({good(4)}), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
    std::size_t collected = 0;
    for (int round = 0; round < 2; ++round) {
        CUfileIOEvents_t events[2];
        unsigned count = 2;
        ASSERT_CUFILE(cuFileBatchIOGetStatus(batch, 2, &count, events, nullptr), CU_FILE_SUCCESS);
        EXPECT_EQ(count, 2U);
        collected += count;
        if (round == 0) {
            ASSERT_CUFILE(batch.submit({good(4), good(5)}), CU_FILE_SUCCESS);
        }
    }
    EXPECT_EQ(collected + batch.collect(2).size(), 6U);
}

// It never waits for what cannot come, and never longer than it was told.
TEST_F(CufileBatch, CollectingIsBounded) {
    const TempFile file(pattern(MiB, 1));
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    std::vector<unsigned char> memory(MiB);
    Batch batch(4);
    CUfileIOEvents_t events[8];
    unsigned count = 8;
    EXPECT_CUFILE(cuFileBatchIOGetStatus(batch, 8, &count, events, nullptr), CU_FILE_SUCCESS);
    EXPECT_EQ(count, 0U) << "nothing was submitted";
    ASSERT_CUFILE(batch.submit({entry(handle, CUFILE_READ, memory.data(), MiB, 0)}), CU_FILE_SUCCESS);
    count = 8;
    EXPECT_CUFILE(cuFileBatchIOGetStatus(batch, 8, &count, events, nullptr), CU_FILE_SUCCESS);
    EXPECT_EQ(count, 1U) << "no second one can come";
    const CUfileError_t invalid{CU_FILE_INVALID_VALUE, 0};
    timespec none{0, 0}, negative{-1, 0}, too_many{0, 1'000'000'000}, ever{INT64_MAX, 999'999'999};
    count = 8;
    EXPECT_CUFILE(cuFileBatchIOGetStatus(batch, 1, &count, events, &none), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBatchIOGetStatus(batch, 0, &count, events, &ever), CU_FILE_SUCCESS);
    for (timespec* time : {&negative, &too_many})
        EXPECT_CUFILE(cuFileBatchIOGetStatus(batch, 0, &count, events, time), invalid.err);
    count = 2;
    EXPECT_CUFILE(cuFileBatchIOGetStatus(batch, 3, &count, events, &none), invalid.err);
    EXPECT_CUFILE(cuFileBatchIOGetStatus(batch, 0, nullptr, events, &none), invalid.err);
    EXPECT_CUFILE(cuFileBatchIOGetStatus(batch, 0, &count, nullptr, &none), invalid.err);
    EXPECT_CUFILE(cuFileBatchIOGetStatus(nullptr, 0, &count, events, &none),
                  CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR);
}

// Entries that a thread has begun go on, the others end at once; and each ends once.
TEST_F(CufileBatch, Cancel) {
    const auto content = pattern(4 * MiB, 1);
    const TempFile file(content);
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    std::vector<unsigned char> memory(64 * 4 * MiB);
    Batch batch(64);
    std::vector<CUfileIOParams_t> entries;
    for (std::uintptr_t i = 0; i < 64; ++i)
        entries.push_back(
            entry(handle, CUFILE_READ, memory.data(), 4 * MiB, 0, static_cast<off_t>(i * 4 * MiB), i));
    ASSERT_CUFILE(batch.submit(entries), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBatchIOCancel(batch), CU_FILE_SUCCESS);
    const auto ended = batch.collect(64);
    ASSERT_EQ(ended.size(), 64U);
    for (const auto& [cookie, end] : ended) {
        if (end.status == CUFILE_CANCELED) {
            EXPECT_EQ(end.result, -ECANCELED);
        } else {
            EXPECT_EQ(end, (Ended{CUFILE_COMPLETE, 4 * MiB}));
            EXPECT_TRUE(same(content, 0, memory.data() + cookie * 4 * MiB, 4 * MiB));
        }
    }
    // It may be used again.
    ASSERT_CUFILE(batch.submit({entries[0]}), CU_FILE_SUCCESS);
    EXPECT_EQ(batch.collect(1).at(0), (Ended{CUFILE_COMPLETE, 4 * MiB}));
    EXPECT_CUFILE(cuFileBatchIOCancel(nullptr), CU_FILE_SUCCESS);
}

// Whoever has destroyed a batch has the memory for themselves, and may close what its entries are of.
TEST_F(CufileBatch, DestroyWhileEntriesAreOnTheirWay) {
    const TempFile file(std::vector<unsigned char>(4 * MiB, 1));
    const GpuMemory gpu(0, 64 * MiB);
    std::vector<unsigned char> host(64 * MiB);
    for (int round = 0; round < 6; ++round) {
        unsigned char* const memory = round % 2 == 0 ? gpu.get() : host.data();
        CUfileBatchHandle_t batch = nullptr;
        ASSERT_CUFILE(cuFileBatchIOSetUp(&batch, 16), CU_FILE_SUCCESS);
        {
            const Descriptor descriptor(file.path(), O_RDONLY);
            const Handle handle(descriptor);
            std::vector<CUfileIOParams_t> entries;
            for (int i = 0; i < 16; ++i)
                entries.push_back(
                    entry(handle, CUFILE_READ, memory, 4 * MiB, 0, i * static_cast<off_t>(4 * MiB)));
            ASSERT_CUFILE(cuFileBatchIOSubmit(batch, 16, entries.data(), 0), CU_FILE_SUCCESS);
        }
        cuFileBatchIODestroy(batch);
        std::memset(memory, 2, 64 * MiB);
        CUfileIOParams_t none{};
        EXPECT_CUFILE(cuFileBatchIOSubmit(batch, 1, &none, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
        cuFileBatchIODestroy(batch);
        EXPECT_TRUE(memory[0] == 2 && std::memcmp(memory, memory + 1, 64 * MiB - 1) == 0) << round;
    }
    cuFileBatchIODestroy(nullptr);
}

TEST_F(CufileBatch, EntriesGoOnWhenTheirHandleIsGivenBack) {
    const auto content = pattern(4 * MiB, 1);
    const TempFile file(content);
    const GpuMemory memory(0, 64 * MiB);
    Batch batch(16);
    {
        const Descriptor descriptor(file.path(), O_RDONLY);
        const Handle handle(descriptor);
        std::vector<CUfileIOParams_t> entries;
        for (std::uintptr_t i = 0; i < 16; ++i)
            entries.push_back(
                entry(handle, CUFILE_READ, memory.get(), 4 * MiB, 0, static_cast<off_t>(i * 4 * MiB), i));
        ASSERT_CUFILE(batch.submit(entries), CU_FILE_SUCCESS);
    }
    for (const auto& [cookie, end] : batch.collect(16)) {
        EXPECT_EQ(end, (Ended{CUFILE_COMPLETE, 4 * MiB}));
        EXPECT_TRUE(same(content, 0, memory.get() + cookie * 4 * MiB, 4 * MiB));
    }
}

TEST_F(CufileBatch, ManyThreadsShareABatch) {
    const auto content = pattern(MiB, 1);
    const TempFile file(content);
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    Batch batch(128);
    constexpr unsigned threads = 4, rounds = 50;
    std::atomic<unsigned> collected{0};
    // Any thread collects the ends of all: each entry has memory of its own, which outlives them.
    std::vector<std::vector<unsigned char>> memories(threads, std::vector<unsigned char>(rounds * 16 * 4096));
    std::vector<std::thread> all;
    for (unsigned t = 0; t < threads; ++t)
        all.emplace_back([&, t] {
            std::vector<unsigned char>& memory = memories[t];
            for (unsigned round = 0; round < rounds; ++round) {
                std::vector<CUfileIOParams_t> entries;
                for (off_t i = 0; i < 16; ++i)
                    entries.push_back(entry(handle, CUFILE_READ, memory.data(), 4096, 4096 * i,
                                            4096 * (16 * static_cast<off_t>(round) + i)));
                ASSERT_CUFILE(batch.submit(entries), CU_FILE_SUCCESS);
                for (unsigned own = 0; own < 16;) {
                    CUfileIOEvents_t events[16];
                    unsigned count = 16 - own;
                    ASSERT_CUFILE(cuFileBatchIOGetStatus(batch, 1, &count, events, nullptr), CU_FILE_SUCCESS);
                    for (unsigned i = 0; i < count; ++i) {
                        EXPECT_EQ(events[i].status, CUFILE_COMPLETE);
                    }
                    own += count;
                    collected += count;
                }
            }
        });
    for (auto& thread : all) thread.join();
    EXPECT_EQ(collected, threads * rounds * 16);
}

}  // namespace
}  // namespace sidestep::cufile_test
