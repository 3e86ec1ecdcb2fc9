// Ranks on emulated GPUs of this process, their memory, and elements of every type.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shims/nccl/abi.h"

namespace sidestep::nccl_test {

#define EXPECT_NCCL(call) EXPECT_EQ((call), ncclSuccess) << ncclGetLastError(nullptr)
#define ASSERT_NCCL(call) ASSERT_EQ((call), ncclSuccess) << ncclGetLastError(nullptr)

constexpr ncclConfig_t default_config() {
    constexpr int undefined = NCCL_CONFIG_UNDEF_INT;
    return {sizeof(ncclConfig_t),
            NCCL_CONFIG_MAGIC,
            NCCL_VERSION_CODE,
            undefined,
            undefined,
            undefined,
            undefined,
            nullptr,
            undefined,
            undefined,
            nullptr,
            undefined,
            undefined,
            undefined,
            undefined,
            undefined,
            undefined};
}

std::size_t size_of(ncclDataType_t type);
// Bytes of a small number that the type can hold exactly, and back.
std::vector<std::byte> encode(ncclDataType_t type, const std::vector<double>& values);
std::vector<double> decode(ncclDataType_t type, const void* data, std::size_t count);
const char* name_of(ncclDataType_t type);

// Memory of ncclMemAlloc on an emulated GPU; the bytes can be read and written here.
class Memory {
public:
    Memory(int device, std::size_t bytes);
    Memory(int device, const std::vector<std::byte>& content);
    ~Memory();
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&&) = delete;

    std::byte* data() const { return data_; }
    std::byte* at(std::size_t offset) const { return data_ + offset; }

private:
    std::byte* data_ = nullptr;
};

// All ranks of a communicator, driven by one thread: rank r on emulated GPU r.
class World {
public:
    explicit World(int ranks);
    ~World();
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    int ranks() const { return static_cast<int>(comms_.size()); }
    ncclComm_t operator[](int rank) const { return comms_[static_cast<std::size_t>(rank)]; }
    // `call(rank)` of every rank within one group; what ncclGroupEnd answered.
    ncclResult_t together(const std::function<void(int)>& call) const;
    std::vector<Memory> memory(std::size_t bytes) const;

private:
    std::vector<ncclComm_t> comms_;
};

// Of tests that ask for no other.
constexpr const char* default_timeout_s = "20";
// How long ranks wait for each other, of communicators that are made while it lives.
class Timeout {
public:
    explicit Timeout(const char* seconds);
    ~Timeout();
    Timeout(const Timeout&) = delete;
    Timeout& operator=(const Timeout&) = delete;
};

ncclUniqueId new_id();

// Each rank gives its number; whether all of `comms` see the sum. Rank r of the list is on the GPU of
// devices[r].
void expect_sum(const std::vector<ncclComm_t>& comms, const std::vector<int>& devices);

void destroy(const std::vector<ncclComm_t>& comms);

// ncclCommGetAsyncError until it is not ncclInProgress; at most half a minute.
ncclResult_t settled(ncclComm_t comm);

std::string last_error(ncclComm_t comm = nullptr);

}  // namespace sidestep::nccl_test
