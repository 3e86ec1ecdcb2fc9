// Loads and stores of device code: of packets, of flags, and of bytes at any alignment.
#pragma once

#include "backends/cuda/collective/control.hpp"

namespace sidestep::backends::cuda {

using protocol::ArenaLayout;
using protocol::CollectiveTask;
using protocol::Combine;
using protocol::Element;
using protocol::Share;
using protocol::Slice;
using protocol::Token;

// Where the launch allows that this kernel begins while the one before it in the stream still runs: nothing
// of that one is to be seen before this returns. By every thread, first of all.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The kernel behind this one may be brought to the multiprocessors, where it waits for the end of this one.
__device__ inline void let_next_kernel_come() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" :::);
#endif
}

struct alignas(16) Words {
    uint32_t at[4];
};

// Packets: no cache may answer, and each aligned half arrives as a whole.
__device__ inline Words load_packet(const char* from) {
    Words value;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.at[0]), "=r"(value.at[1]), "=r"(value.at[2]), "=r"(value.at[3])
                 : "l"(from));
    return value;
}
// What its sender saw before it sent the packet is seen by whoever reads on after it.
__device__ inline Words load_packet_acquiring(const char* from) {
    Words value;
    asm volatile("ld.acquire.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.at[0]), "=r"(value.at[1]), "=r"(value.at[2]), "=r"(value.at[3])
                 : "l"(from)
                 : "memory");
    return value;
}
__device__ inline void store_packet(char* to, uint32_t low, uint32_t high, uint32_t flag) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};" ::"l"(to), "r"(low), "r"(high),
                 "r"(flag));
}
__device__ inline void store_packet(char* to, uint64_t payload, uint32_t flag) {
    store_packet(to, static_cast<uint32_t>(payload), static_cast<uint32_t>(payload >> 32), flag);
}
__device__ inline void store_words(char* to, const Words& value) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.at[0]),
                 "r"(value.at[1]), "r"(value.at[2]), "r"(value.at[3]));
}
__device__ inline bool flagged(const Words& packet, uint32_t flag) {
    return packet.at[1] == flag && packet.at[3] == flag;
}
__device__ inline uint64_t payload_of(const Words& packet) {
    return packet.at[0] | static_cast<uint64_t>(packet.at[2]) << 32;
}

constexpr unsigned unit = 8;  // bytes of a packet's payload

// Bytes of a block's unit: 8, fewer at its end, 0 behind it.
__device__ inline unsigned bytes_at(uint64_t bytes, uint64_t at) {
    if (at * unit >= bytes) return 0;
    const uint64_t left = bytes - at * unit;
    return left < unit ? static_cast<unsigned>(left) : unit;
}

__device__ inline uint64_t load_word(const void* from) {
    uint64_t value;
    asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(value) : "l"(from));
    return value;
}
__device__ inline uint64_t load_flag(const char* from) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}
__device__ inline void store_flag(char* to, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// 16 aligned bytes, of this GPU or another one; written by others before, so not through caches that may be
// stale.
__device__ inline Words load16(const char* from) {
    Words value;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.at[0]), "=r"(value.at[1]), "=r"(value.at[2]), "=r"(value.at[3])
                 : "l"(from));
    return value;
}
__device__ inline void store16(char* to, const Words& value) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.at[0]), "r"(value.at[1]),
                 "r"(value.at[2]), "r"(value.at[3]));
}

template <typename Unit>
__device__ inline Unit load_unit(const char* from) {
    return *reinterpret_cast<const volatile Unit*>(from);
}
template <typename Unit>
__device__ inline void store_unit(char* to, Unit value) {
    *reinterpret_cast<volatile Unit*>(to) = value;
}

// protocol::share_of with a granule of 128, in bytes: a line of memory that two blocks write takes a link
// twice. By divisions of 32 bits where that will do, which take a tenth of the time.
__device__ inline Share share_of_bytes(uint64_t bytes, unsigned block, unsigned blocks) {
    constexpr uint64_t granule = 128;
    const uint64_t granules = (bytes + granule - 1) / granule;
    if (granules >= 1u << 25) return protocol::share_of(bytes, block, blocks, granule);
    const uint64_t begin = uint64_t{static_cast<uint32_t>(granules) * block / blocks} * granule;
    const uint64_t end = uint64_t{static_cast<uint32_t>(granules) * (block + 1) / blocks} * granule;
    return {begin < bytes ? begin : bytes, end < bytes ? end : bytes};
}
static_assert(protocol::max_blocks == 128, "granules times blocks fit into 32 bits");

__device__ inline unsigned misalignment(const void* address) {
    return static_cast<unsigned>(reinterpret_cast<uint64_t>(address) & 15);
}

// `bytes` (1 to 8) bytes at any address, as the low ones of the word; no byte beside them is touched. What is
// not aligned is read byte by byte, with all loads under way at a time.
__device__ inline uint64_t load_up_to_8(const char* from, unsigned bytes) {
    if (bytes == 8 && misalignment(from) % 8 == 0) return load_unit<uint64_t>(from);
    uint32_t part[8];
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) part[i] = i < bytes ? load_unit<uint8_t>(from + i) : 0;
    const uint32_t low = part[0] | part[1] << 8 | part[2] << 16 | part[3] << 24;
    const uint32_t high = part[4] | part[5] << 8 | part[6] << 16 | part[7] << 24;
    return low | static_cast<uint64_t>(high) << 32;
}
__device__ inline void store_up_to_8(char* to, uint64_t value, unsigned bytes) {
    if (bytes == 8 && misalignment(to) % 8 == 0) return store_unit<uint64_t>(to, value);
#pragma unroll
    for (unsigned i = 0; i < 8; ++i)
        if (i < bytes) store_unit<uint8_t>(to + i, static_cast<uint8_t>(value >> (8 * i)));
}

// The same of 1 to 16 bytes.
__device__ inline Words load_up_to_16(const char* from, unsigned bytes) {
    if (bytes == 16 && misalignment(from) == 0) return load_packet(from);
    const uint64_t low = load_up_to_8(from, bytes < 8 ? bytes : 8);
    const uint64_t high = bytes > 8 ? load_up_to_8(from + 8, bytes - 8) : 0;
    return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
             static_cast<uint32_t>(high >> 32)}};
}
__device__ inline void store_up_to_16(char* to, const Words& value, unsigned bytes) {
    if (bytes == 16 && misalignment(to) == 0) return store16(to, value);
    store_up_to_8(to, value.at[0] | static_cast<uint64_t>(value.at[1]) << 32, bytes < 8 ? bytes : 8);
    if (bytes > 8) store_up_to_8(to + 8, value.at[2] | static_cast<uint64_t>(value.at[3]) << 32, bytes - 8);
}

}  // namespace sidestep::backends::cuda
