// The shim on GPUs of CUDA: whose device is meant, and order between a caller's streams.
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cuda_by_name.hpp"
#include "tests/nccl/world.hpp"

namespace {

class NcclCuda : public sidestep::test::OnCuda {
protected:
    ncclComm_t alone() {
        ncclUniqueId id{};
        ncclComm_t comm = nullptr;
        EXPECT_EQ(ncclGetUniqueId(&id), +ncclSuccess) << ncclGetLastError(nullptr);
        EXPECT_EQ(ncclCommInitRank(&comm, 1, id, 0), +ncclSuccess) << ncclGetLastError(nullptr);
        return comm;
    }
};

TEST_F(NcclCuda, TheCurrentDeviceIsMeant) {
    int device_ordinal = 9;  // cuda.h: CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    for (int device = devices - 1; device >= 0; --device) {
        choose(device);
        const ncclComm_t comm = alone();
        int number = -1;
        EXPECT_EQ(ncclCommCuDevice(comm, &number), +ncclSuccess);
        EXPECT_EQ(number, device);
        void* memory = nullptr;
        ASSERT_EQ(ncclMemAlloc(&memory, 1 << 20), +ncclSuccess) << ncclGetLastError(nullptr);
        int owner = -1;
        void* into = &owner;
        EXPECT_EQ(cuda.attributes(1, &device_ordinal, &into, reinterpret_cast<unsigned long long>(memory)),
                  0);
        EXPECT_EQ(owner, device);
        EXPECT_EQ(ncclMemFree(memory), +ncclSuccess) << ncclGetLastError(nullptr);
        EXPECT_EQ(ncclCommDestroy(comm), +ncclSuccess) << ncclGetLastError(nullptr);
    }
    EXPECT_EQ(sidestepNcclSetDevice(0), +ncclInvalidUsage);
}

TEST_F(NcclCuda, DevicesHaveCudasNumbers) {
    std::vector<ncclComm_t> comms(static_cast<std::size_t>(devices));
    ASSERT_EQ(ncclCommInitAll(comms.data(), devices, nullptr), +ncclSuccess) << ncclGetLastError(nullptr);
    for (int rank = 0; rank < devices; ++rank) {
        int number = -1;
        EXPECT_EQ(ncclCommCuDevice(comms[static_cast<std::size_t>(rank)], &number), +ncclSuccess);
        EXPECT_EQ(number, rank);
    }
    for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), +ncclSuccess);
    EXPECT_EQ(ncclCommInitAll(comms.data(), 1, &devices), +ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("CUDA has no device"), std::string::npos);
}

TEST_F(NcclCuda, PairsOfSeveralStreamsInOneGroup) {
    choose(0);
    const ncclComm_t comm = alone();
    cudaStream_t streams[2] = {};
    for (cudaStream_t& stream : streams) ASSERT_EQ(cuda.make_stream(&stream, 1), 0);
    void* memory = nullptr;
    ASSERT_EQ(ncclMemAlloc(&memory, 8192), +ncclSuccess) << ncclGetLastError(nullptr);
    auto* bytes = static_cast<char*>(memory);
    ASSERT_EQ(ncclGroupStart(), +ncclSuccess);
    EXPECT_EQ(ncclSend(bytes, 4096, ncclInt8, 0, comm, streams[0]), +ncclSuccess)
        << ncclGetLastError(nullptr);
    EXPECT_EQ(ncclRecv(bytes + 4096, 4096, ncclInt8, 0, comm, streams[1]), +ncclSuccess)
        << ncclGetLastError(nullptr);
    EXPECT_EQ(ncclGroupEnd(), +ncclSuccess) << ncclGetLastError(nullptr);
    for (cudaStream_t stream : streams) EXPECT_EQ(cuda.synchronize(stream), 0);
    EXPECT_EQ(ncclCommDestroy(comm), +ncclSuccess) << ncclGetLastError(nullptr);
    EXPECT_EQ(ncclMemFree(memory), +ncclSuccess);
    for (cudaStream_t stream : streams) EXPECT_EQ(cuda.end_stream(stream), 0);
}

TEST_F(NcclCuda, CopyEnginesCarryWhatMovesBytesAlone) {
    if (devices < 2) GTEST_SKIP() << "one GPU has nobody to send to";
    constexpr std::size_t bytes = 100'000;
    ncclConfig_t config = sidestep::nccl_test::default_config();
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    ncclUniqueId id{};
    ASSERT_EQ(ncclGetUniqueId(&id), +ncclSuccess);
    ncclComm_t comms[2] = {};
    cudaStream_t streams[2] = {};
    void* memory[2] = {};
    ASSERT_EQ(ncclGroupStart(), +ncclSuccess);
    for (int rank = 0; rank < 2; ++rank) {
        choose(rank);
        EXPECT_EQ(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config), +ncclSuccess)
            << ncclGetLastError(nullptr);
    }
    ASSERT_EQ(ncclGroupEnd(), +ncclSuccess) << ncclGetLastError(nullptr);
    for (int rank = 0; rank < 2; ++rank) {
        choose(rank);
        ASSERT_EQ(cuda.make_stream(&streams[rank], 1), 0);
        ASSERT_EQ(ncclMemAlloc(&memory[rank], 3 * bytes), +ncclSuccess) << ncclGetLastError(nullptr);
        const std::string own(bytes, static_cast<char>('a' + rank));
        ASSERT_EQ(cuda.to_device(reinterpret_cast<unsigned long long>(memory[rank]), own.data(), bytes), 0);
    }
    ASSERT_EQ(ncclGroupStart(), +ncclSuccess);
    for (int rank = 0; rank < 2; ++rank)
        EXPECT_EQ(ncclAllGather(memory[rank], static_cast<char*>(memory[rank]) + bytes, bytes, ncclInt8,
                                comms[rank], streams[rank]),
                  +ncclSuccess);
    ASSERT_EQ(ncclGroupEnd(), +ncclSuccess) << ncclGetLastError(nullptr);
    for (int rank = 0; rank < 2; ++rank) {
        choose(rank);
        EXPECT_EQ(cuda.synchronize(streams[rank]), 0);
        std::string all(2 * bytes, ' ');
        EXPECT_EQ(
            cuda.to_host(all.data(), reinterpret_cast<unsigned long long>(memory[rank]) + bytes, 2 * bytes),
            0);
        EXPECT_TRUE(all == std::string(bytes, 'a') + std::string(bytes, 'b')) << "rank " << rank;
    }
    for (int rank = 0; rank < 2; ++rank) {
        EXPECT_EQ(ncclCommDestroy(comms[rank]), +ncclSuccess) << ncclGetLastError(nullptr);
        EXPECT_EQ(ncclMemFree(memory[rank]), +ncclSuccess);
        EXPECT_EQ(cuda.end_stream(streams[rank]), 0);
    }
}

}  // namespace
