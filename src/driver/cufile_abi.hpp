// The binary interface of NVIDIA's cuFile library, as far as it is used here. Own declarations; the numbers
// and the order of members are facts of NVIDIA's cuFile API Reference Guide and of the bindings that NVIDIA
// publishes (cuda_bindings/cuda/bindings/cycufile.pxd of github.com/NVIDIA/cuda-python, versions 12.9
// to 13.4), for x86-64 and arm64 Linux.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace sidestep::driver::cufile_abi {

// Returned by value. `code` is 0, or 5000 plus the number of an error; `cuda` is the CUDA driver's code where
// `code` says that the driver failed.
struct Status {
    int code = 0;
    int cuda = 0;
};
static_assert(sizeof(Status) == 8);

constexpr int success = 0;
constexpr int error_base = 5000;
constexpr int driver_already_open = 5026;
constexpr int memory_already_registered = 5023;

using Handle = void*;

constexpr int opaque_fd = 1;

struct Description {
    int type = opaque_fd;
    union {
        int fd;
        void* handle;
    } file = {-1};
    const void* operations = nullptr;  // of file systems in user space
};
static_assert(sizeof(Description) == 24);
static_assert(offsetof(Description, file) == 8 && offsetof(Description, operations) == 16);

// Settings with texts, in the order of their declaration.
constexpr int parameter_log_folder = 2;

// Statistics of level 3: those of level 2, whose size changed, the number of GPUs, and a record for each
// of 16.
constexpr std::size_t max_gpus = 16;

struct GpuRecord {
    std::array<unsigned char, 16> uuid;
    std::uint64_t read_bytes, read_bytes_a_second, read_utilization, read_microseconds;
    std::uint64_t reads, p2p_reads, nvfs_reads, posix_reads, unaligned_reads, routed_reads;
    std::uint64_t sparse_regions, inline_regions, failed_reads;
    std::uint64_t written_bytes, written_bytes_a_second, write_utilization, write_microseconds;
    std::uint64_t writes, p2p_writes, nvfs_writes, posix_writes, unaligned_writes, routed_writes,
        failed_writes;
    std::uint64_t maps, maps_ok, maps_failed, unmaps, registered_bytes;
};
static_assert(sizeof(GpuRecord) == 248);

// Where the number of GPUs stands, and how many bytes the library writes in all. Version 1.19 put counters of
// its new calls into what precedes; the call takes no size, so the library's version decides.
struct StatsLayout {
    std::size_t count_at;
    std::size_t size;

    constexpr std::size_t records_at() const { return count_at + 8; }
};
constexpr StatsLayout stats_before_1_19{1024, 5000};
constexpr StatsLayout stats_since_1_19{1136, 5112};
static_assert(stats_before_1_19.records_at() + max_gpus * sizeof(GpuRecord) == stats_before_1_19.size);
static_assert(stats_since_1_19.records_at() + max_gpus * sizeof(GpuRecord) == stats_since_1_19.size);

}  // namespace sidestep::driver::cufile_abi
