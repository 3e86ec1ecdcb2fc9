// cuFile's statistics: what they count, when, and that they stay within what a program has for them.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "tests/cufile/world.hpp"

namespace sidestep::cufile_test {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;

class CufileStats : public ::testing::Test {
protected:
    void SetUp() override {
        ASSERT_CUFILE(cuFileDriverOpen(), CU_FILE_SUCCESS);
        ASSERT_CUFILE(cuFileSetStatsLevel(3), CU_FILE_SUCCESS);
        ASSERT_CUFILE(cuFileStatsStart(), CU_FILE_SUCCESS);
        ASSERT_CUFILE(cuFileStatsReset(), CU_FILE_SUCCESS);
    }
    void TearDown() override {
        EXPECT_CUFILE(cuFileSetStatsLevel(0), CU_FILE_SUCCESS);
        EXPECT_CUFILE(cuFileDriverClose(), CU_FILE_SUCCESS);
    }
    static CUfileStatsLevel1_t first() {
        CUfileStatsLevel1_t stats{};
        EXPECT_CUFILE(cuFileGetStatsL1(&stats), CU_FILE_SUCCESS);
        return stats;
    }
};

#define EXPECT_COUNTER(counter, good, bad) \
    do {                                   \
        EXPECT_EQ((counter).ok, (good));   \
        EXPECT_EQ((counter).err, (bad));   \
    } while (false)

TEST_F(CufileStats, CallsAndBytes) {
    const TempFile file(pattern(MiB, 1));
    const Descriptor descriptor(file.path(), O_RDWR);
    std::vector<unsigned char> memory(MiB);
    {
        const Handle handle(descriptor);
        EXPECT_EQ(cuFileRead(handle, memory.data(), MiB, 0, 0), static_cast<ssize_t>(MiB));
        EXPECT_EQ(cuFileRead(handle, memory.data(), 4096, MiB - 100, 0), 100);
        EXPECT_EQ(cuFileRead(handle, nullptr, 4096, 0, 0), -CU_FILE_INVALID_VALUE);
        EXPECT_EQ(cuFileWrite(handle, memory.data(), 3000, 0, 0), 3000);
        CUfileDescr_t again = description(descriptor);
        CUfileHandle_t none = nullptr;
        EXPECT_CUFILE(cuFileHandleRegister(&none, &again), CU_FILE_HANDLE_ALREADY_REGISTERED);
        EXPECT_CUFILE(cuFileBufRegister(memory.data(), MiB, 0), CU_FILE_SUCCESS);
        EXPECT_CUFILE(cuFileBufDeregister(memory.data()), CU_FILE_SUCCESS);
        EXPECT_CUFILE(cuFileBufDeregister(memory.data()), CU_FILE_MEMORY_NOT_REGISTERED);
    }
    const CUfileStatsLevel1_t stats = first();
    EXPECT_COUNTER(stats.read_ops, 2U, 1U);
    EXPECT_COUNTER(stats.write_ops, 1U, 0U);
    EXPECT_COUNTER(stats.hdl_register_ops, 1U, 1U);
    EXPECT_COUNTER(stats.hdl_deregister_ops, 1U, 0U);
    EXPECT_COUNTER(stats.buf_register_ops, 1U, 0U);
    EXPECT_COUNTER(stats.buf_deregister_ops, 1U, 1U);
    EXPECT_EQ(stats.read_bytes, MiB + 100);
    EXPECT_EQ(stats.write_bytes, 3000U);
    EXPECT_GT(stats.read_bw_bytes_per_sec, 0U);
    EXPECT_LE(stats.read_lat_avg_us, stats.read_lat_sum_us);
}

TEST_F(CufileStats, Batches) {
    const TempFile file(pattern(MiB, 1));
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle handle(descriptor);
    std::vector<unsigned char> memory(MiB);
    CUfileBatchHandle_t batch = nullptr;
    ASSERT_CUFILE(cuFileBatchIOSetUp(&batch, 4), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBatchIOSetUp(nullptr, 4), CU_FILE_INVALID_VALUE);
    CUfileIOParams_t entries[4] = {};
    off_t in_memory = 0;
    for (auto& entry : entries) {
        entry.mode = CUFILE_BATCH;
        entry.u.batch = {memory.data(), 0, in_memory, 5000};
        in_memory += 5000;
        entry.fh = handle;
        entry.opcode = CUFILE_READ;
    }
    entries[2].u.batch.devPtr_base = nullptr;
    entries[3].opcode = CUFILE_WRITE;
    entries[3].u.batch.file_offset = 100'000;
    ASSERT_CUFILE(cuFileBatchIOSubmit(batch, 4, entries, 0), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBatchIOSubmit(batch, 1, entries, 0), CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
    CUfileIOEvents_t events[4];
    unsigned count = 4;
    ASSERT_CUFILE(cuFileBatchIOGetStatus(batch, 4, &count, events, nullptr), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileBatchIOCancel(batch), CU_FILE_SUCCESS);
    cuFileBatchIODestroy(batch);
    const CUfileStatsLevel1_t stats = first();
    EXPECT_COUNTER(stats.batch_setup_ops, 1U, 1U);
    EXPECT_COUNTER(stats.batch_submit_ops, 1U, 1U);
    EXPECT_COUNTER(stats.batch_enqueued_ops, 4U, 1U);
    EXPECT_COUNTER(stats.batch_processed_ops, 3U, 1U);
    EXPECT_COUNTER(stats.batch_posix_processed_ops, 3U, 1U);
    EXPECT_COUNTER(stats.batch_complete_ops, 4U, 0U);
    EXPECT_COUNTER(stats.batch_cancel_ops, 1U, 0U);
    EXPECT_COUNTER(stats.batch_destroy_ops, 1U, 0U);
    EXPECT_COUNTER(stats.read_ops, 0U, 0U);
    EXPECT_EQ(stats.batch_read_bytes, 10000U);
    EXPECT_EQ(stats.batch_write_bytes, 5000U);
    EXPECT_EQ(stats.last_batch_read_bytes, 15000U);
    EXPECT_EQ(stats.last_batch_write_bytes, 5000U);
}

TEST_F(CufileStats, SizesAndGpus) {
    const TempFile file(pattern(MiB, 1));
    const Descriptor descriptor(file.path(), O_RDWR);
    const Handle handle(descriptor);
    const GpuMemory memory(2, 2 * MiB);
    EXPECT_EQ(cuFileRead(handle, memory.get(), MiB, 0, 0), static_cast<ssize_t>(MiB));
    EXPECT_EQ(cuFileRead(handle, memory.get(), 4096, 5, 0), 4096);
    EXPECT_EQ(cuFileRead(handle, memory.get(), 100, 4096, 0), 100);
    EXPECT_EQ(cuFileWrite(handle, memory.get(), 4096, 0, 0), 4096);
    CUfileStatsLevel2_t second{};
    ASSERT_CUFILE(cuFileGetStatsL2(&second), CU_FILE_SUCCESS);
    // In the layout of 1.18, whose first level is shorter than that of the header.
    const auto* const words =
        reinterpret_cast<const std::uint64_t*>(&second) + CUFILE_STATS_L1_BEFORE_1_19 / 8;
    const auto *const reads = words, *const writes = words + 32;
    EXPECT_EQ(reads[0], 1U);   // below 2 KiB
    EXPECT_EQ(reads[2], 1U);   // 4 KiB to 8
    EXPECT_EQ(reads[10], 1U);  // 1 MiB to 2
    EXPECT_EQ(std::accumulate(reads, reads + 32, std::uint64_t{0}), 3U);
    EXPECT_EQ(writes[2], 1U);
    EXPECT_EQ(std::accumulate(writes, writes + 32, std::uint64_t{0}), 1U);

    std::vector<unsigned char> third(sizeof(CUfileStatsLevel3_t));
    ASSERT_CUFILE(cuFileGetStatsL3(reinterpret_cast<CUfileStatsLevel3_t*>(third.data())), CU_FILE_SUCCESS);
    std::uint32_t gpus = 0;
    std::memcpy(&gpus, third.data() + CUFILE_STATS_L2_BEFORE_1_19, sizeof gpus);
    EXPECT_EQ(gpus, 8U);
    CUfilePerGpuStats_t per_gpu[16];
    std::memcpy(per_gpu, third.data() + CUFILE_STATS_L2_BEFORE_1_19 + 8, sizeof per_gpu);
    EXPECT_EQ(per_gpu[2].read_bytes, MiB + 4096 + 100);
    EXPECT_EQ(per_gpu[2].n_total_reads, 3U);
    EXPECT_EQ(per_gpu[2].n_posix_reads, 3U);
    EXPECT_EQ(per_gpu[2].n_p2p_reads, 0U);
    EXPECT_EQ(per_gpu[2].n_unaligned_reads, 2U);
    EXPECT_EQ(per_gpu[2].writes_bytes, 4096U);
    EXPECT_EQ(per_gpu[2].n_total_writes, 1U);
    EXPECT_EQ(per_gpu[0].n_total_reads, 0U);
}

// Never more bytes than a program of that version has: it would be its stack.
TEST_F(CufileStats, NothingIsWrittenBehindTheStructuresOfTheVersion) {
    std::vector<unsigned char> room(8192, 0xee);
    const struct {
        std::size_t bytes;
        CUfileError_t (*fill)(void*);
    } table[] = {
        {512, [](void* to) { return cuFileGetStatsL1(static_cast<CUfileStatsLevel1_t*>(to)); }},
        {1024, [](void* to) { return cuFileGetStatsL2(static_cast<CUfileStatsLevel2_t*>(to)); }},
        {5000, [](void* to) { return cuFileGetStatsL3(static_cast<CUfileStatsLevel3_t*>(to)); }},
    };
    for (const auto& [bytes, fill] : table) {
        room.assign(room.size(), 0xee);
        ASSERT_CUFILE(fill(room.data()), CU_FILE_SUCCESS);
        EXPECT_EQ(std::count(room.begin(), room.begin() + static_cast<long>(bytes), 0xee), 0) << bytes;
        EXPECT_EQ(std::count(room.begin() + static_cast<long>(bytes), room.end(), 0xee),
                  static_cast<long>(room.size() - bytes))
            << bytes;
    }
}

TEST_F(CufileStats, WhenIsCounted) {
    const TempFile file(pattern(MiB, 1));
    const Descriptor descriptor(file.path(), O_RDONLY);
    const Handle handle(descriptor);
    std::vector<unsigned char> memory(4096);
    const auto reads_once = [&] { EXPECT_EQ(cuFileRead(handle, memory.data(), 4096, 0, 0), 4096); };
    reads_once();
    EXPECT_EQ(first().read_ops.ok, 1U);
    EXPECT_CUFILE(cuFileStatsStop(), CU_FILE_SUCCESS);
    reads_once();
    EXPECT_EQ(first().read_ops.ok, 1U) << "it was stopped";
    EXPECT_CUFILE(cuFileStatsStart(), CU_FILE_SUCCESS);
    reads_once();
    EXPECT_EQ(first().read_ops.ok, 2U);
    EXPECT_CUFILE(cuFileSetStatsLevel(0), CU_FILE_SUCCESS);
    reads_once();
    EXPECT_CUFILE(cuFileSetStatsLevel(1), CU_FILE_SUCCESS);
    EXPECT_EQ(first().read_ops.ok, 2U) << "the level was 0";
    EXPECT_CUFILE(cuFileStatsReset(), CU_FILE_SUCCESS);
    EXPECT_EQ(first().read_ops.ok, 0U);
    reads_once();
    EXPECT_EQ(first().read_ops.ok, 1U);
}

TEST_F(CufileStats, Refused) {
    CUfileStatsLevel1_t one{};
    CUfileStatsLevel2_t two{};
    CUfileStatsLevel3_t three{};
    int level = -1;
    for (int wrong : {-1, 4}) EXPECT_CUFILE(cuFileSetStatsLevel(wrong), CU_FILE_INVALID_VALUE);
    EXPECT_CUFILE(cuFileGetStatsLevel(&level), CU_FILE_SUCCESS);
    EXPECT_EQ(level, 3);
    EXPECT_CUFILE(cuFileGetStatsLevel(nullptr), CU_FILE_INVALID_VALUE);
    EXPECT_CUFILE(cuFileGetStatsL1(nullptr), CU_FILE_INVALID_VALUE);
    EXPECT_CUFILE(cuFileSetStatsLevel(1), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileGetStatsL2(&two), CU_FILE_INVALID_VALUE);
    EXPECT_CUFILE(cuFileSetStatsLevel(2), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileGetStatsL2(&two), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileGetStatsL3(&three), CU_FILE_INVALID_VALUE);
    EXPECT_CUFILE(cuFileSetStatsLevel(0), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileGetStatsL1(&one), CU_FILE_INVALID_VALUE);
    const long uses = cuFileUseCount();
    for (long i = 0; i < uses; ++i) EXPECT_CUFILE(cuFileDriverClose(), CU_FILE_SUCCESS);
    EXPECT_CUFILE(cuFileGetStatsL1(&one), CU_FILE_DRIVER_NOT_INITIALIZED);
    EXPECT_CUFILE(cuFileStatsStart(), CU_FILE_DRIVER_NOT_INITIALIZED);
    EXPECT_CUFILE(cuFileStatsStop(), CU_FILE_DRIVER_NOT_INITIALIZED);
    EXPECT_CUFILE(cuFileStatsReset(), CU_FILE_DRIVER_NOT_INITIALIZED);
    for (long i = 0; i < uses; ++i) EXPECT_CUFILE(cuFileDriverOpen(), CU_FILE_SUCCESS);
}

}  // namespace
}  // namespace sidestep::cufile_test
