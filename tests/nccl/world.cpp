#include "tests/nccl/world.hpp"

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace sidestep::nccl_test {
namespace {

struct Type {
    const char* name;
    std::size_t size;
    int exponent;  // bits of a float's exponent, 0 for an integer
};
constexpr std::array<Type, ncclNumTypes> types = {{{"i8", 1, 0},
                                                   {"u8", 1, 0},
                                                   {"i32", 4, 0},
                                                   {"u32", 4, 0},
                                                   {"i64", 8, 0},
                                                   {"u64", 8, 0},
                                                   {"f16", 2, 5},
                                                   {"f32", 4, 8},
                                                   {"f64", 8, 11},
                                                   {"bf16", 2, 8},
                                                   {"f8_e4m3", 1, 4},
                                                   {"f8_e5m2", 1, 5}}};

const Type& type_of(ncclDataType_t type) {
    return types.at(static_cast<std::size_t>(type));
}

// Normal numbers and 0 only.
std::uint64_t to_bits(const Type& type, double value) {
    if (type.exponent == 0) return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    if (value == 0) return 0;
    const int mantissa = static_cast<int>(type.size) * 8 - 1 - type.exponent;
    const int bias = (1 << (type.exponent - 1)) - 1;
    const int exponent = std::ilogb(value);
    const auto fraction = static_cast<std::uint64_t>(std::ldexp(std::fabs(value), mantissa - exponent)) -
                          (std::uint64_t{1} << mantissa);
    const auto sign = static_cast<std::uint64_t>(value < 0) << (type.size * 8 - 1);
    return sign | static_cast<std::uint64_t>(exponent + bias) << mantissa | fraction;
}

double from_bits(const Type& type, std::uint64_t bits) {
    if (type.exponent == 0) {
        const auto shift = static_cast<int>(64 - type.size * 8);
        const bool is_signed = type.name[0] == 'i';
        return is_signed ? static_cast<double>(static_cast<std::int64_t>(bits << shift) >> shift)
                         : static_cast<double>(bits);
    }
    const int mantissa = static_cast<int>(type.size) * 8 - 1 - type.exponent;
    const int bias = (1 << (type.exponent - 1)) - 1;
    const auto fraction = bits & ((std::uint64_t{1} << mantissa) - 1);
    const int exponent = static_cast<int>(bits >> mantissa) & ((1 << type.exponent) - 1);
    const double size = exponent == 0
                            ? std::ldexp(static_cast<double>(fraction), 1 - bias - mantissa)
                            : std::ldexp(static_cast<double>(fraction | std::uint64_t{1} << mantissa),
                                         exponent - bias - mantissa);
    return bits >> (type.size * 8 - 1) ? -size : size;
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
    return type_of(type).size;
}
const char* name_of(ncclDataType_t type) {
    return type_of(type).name;
}

std::vector<std::byte> encode(ncclDataType_t type, const std::vector<double>& values) {
    const std::size_t size = size_of(type);
    std::vector<std::byte> bytes(values.size() * size);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint64_t bits = to_bits(type_of(type), values[i]);
        std::memcpy(bytes.data() + i * size, &bits, size);
    }
    return bytes;
}

std::vector<double> decode(ncclDataType_t type, const void* data, std::size_t count) {
    const std::size_t size = size_of(type);
    std::vector<double> values(count);
    for (std::size_t i = 0; i < count; ++i) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, static_cast<const char*>(data) + i * size, size);
        values[i] = from_bits(type_of(type), bits);
    }
    return values;
}

Memory::Memory(int device, std::size_t bytes) {
    EXPECT_NCCL(sidestepNcclSetDevice(device));
    void* memory = nullptr;
    EXPECT_NCCL(ncclMemAlloc(&memory, bytes));
    data_ = static_cast<std::byte*>(memory);
}

Memory::Memory(int device, const std::vector<std::byte>& content) : Memory(device, content.size()) {
    std::memcpy(data_, content.data(), content.size());
}

Memory::Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}

Memory::~Memory() {
    EXPECT_NCCL(ncclMemFree(data_));
}

World::World(int ranks) : comms_(static_cast<std::size_t>(ranks)) {
    EXPECT_NCCL(ncclCommInitAll(comms_.data(), ranks, nullptr));
}

// One after the other, by one thread: none may wait for another.
World::~World() {
    for (ncclComm_t comm : comms_) EXPECT_NCCL(ncclCommDestroy(comm));
}

ncclResult_t World::together(const std::function<void(int)>& call) const {
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < ranks(); ++rank) call(rank);
    return ncclGroupEnd();
}

std::vector<Memory> World::memory(std::size_t bytes) const {
    std::vector<Memory> all;
    for (int rank = 0; rank < ranks(); ++rank) {
        all.emplace_back(rank, bytes);
        std::memset(all.back().data(), 0x5a, bytes);
    }
    return all;
}

Timeout::Timeout(const char* seconds) {
    ::setenv("SIDESTEP_GROUP_TIMEOUT", seconds, 1);
}
Timeout::~Timeout() {
    ::setenv("SIDESTEP_GROUP_TIMEOUT", default_timeout_s, 1);
}

ncclUniqueId new_id() {
    ncclUniqueId id{};
    EXPECT_NCCL(ncclGetUniqueId(&id));
    return id;
}

void expect_sum(const std::vector<ncclComm_t>& comms, const std::vector<int>& devices) {
    std::vector<Memory> data;
    double sum = 0;
    for (std::size_t i = 0; i < comms.size(); ++i) {
        data.emplace_back(devices[i],
                          encode(ncclFloat32, std::vector<double>(100, static_cast<double>(i + 1))));
        sum += static_cast<double>(i + 1);
    }
    ASSERT_NCCL(ncclGroupStart());
    for (std::size_t i = 0; i < comms.size(); ++i)
        EXPECT_NCCL(
            ncclAllReduce(data[i].data(), data[i].data(), 100, ncclFloat32, ncclSum, comms[i], nullptr));
    ASSERT_NCCL(ncclGroupEnd());
    for (const Memory& result : data)
        EXPECT_EQ(decode(ncclFloat32, result.data(), 100), std::vector<double>(100, sum));
}

void destroy(const std::vector<ncclComm_t>& comms) {
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

ncclResult_t settled(ncclComm_t comm) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress && std::chrono::steady_clock::now() < until) {
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return state;
}

std::string last_error(ncclComm_t comm) {
    return ncclGetLastError(comm);
}

}  // namespace sidestep::nccl_test
