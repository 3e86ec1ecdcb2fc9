// Many copies in one launch, by loads and stores over memory that this GPU reaches.
#include "backends/cuda/batch_table.hpp"

namespace {

using namespace sidestep::backends::cuda;

// One tile by one warp. Both addresses are equal modulo the width of a word; the bytes before the first
// aligned word and after the last go one by one.
template <typename Word>
__device__ void copy_tile(char* to, const char* from, unsigned bytes, unsigned lane) {
    constexpr unsigned width = sizeof(Word);
    constexpr unsigned unroll = 8;
    unsigned head = (width - static_cast<unsigned>(reinterpret_cast<unsigned long long>(to) % width)) % width;
    if (head > bytes) head = bytes;
    const unsigned words = (bytes - head) / width;
    const unsigned tail = bytes - head - words * width;
    if (lane < head) to[lane] = from[lane];
    if (lane < tail) to[bytes - 1 - lane] = from[bytes - 1 - lane];

    Word* out = reinterpret_cast<Word*>(to + head);
    const Word* in = reinterpret_cast<const Word*>(from + head);
    for (unsigned base = lane; base < words; base += 32 * unroll) {
        Word held[unroll];
#pragma unroll
        for (unsigned i = 0; i < unroll; ++i)
            if (base + i * 32 < words) held[i] = __ldcs(in + base + i * 32);
#pragma unroll
        for (unsigned i = 0; i < unroll; ++i)
            if (base + i * 32 < words) __stcs(out + base + i * 32, held[i]);
    }
}

__device__ void copy_tile_by_alignment(char* to, const char* from, unsigned bytes, unsigned lane) {
    const auto apart = reinterpret_cast<unsigned long long>(to) ^ reinterpret_cast<unsigned long long>(from);
    if (apart % 16 == 0)
        copy_tile<uint4>(to, from, bytes, lane);
    else if (apart % 8 == 0)
        copy_tile<uint2>(to, from, bytes, lane);
    else if (apart % 4 == 0)
        copy_tile<unsigned int>(to, from, bytes, lane);
    else if (apart % 2 == 0)
        copy_tile<unsigned short>(to, from, bytes, lane);
    else
        copy_tile<unsigned char>(to, from, bytes, lane);
}

// The entry that a tile belongs to. Where all entries have one size, the first guess is right.
template <unsigned Entries>
__device__ unsigned entry_of(const BatchTable<Entries>& table, unsigned tile) {
    unsigned low = 0;
    unsigned high = table.count - 1;
    unsigned look = static_cast<unsigned>(static_cast<unsigned long long>(tile) * table.count / table.tiles);
    while (low < high) {
        if (table.entries[look].end_tile <= tile)
            low = look + 1;
        else if (look > 0 && table.entries[look - 1].end_tile > tile)
            high = look - 1;
        else
            return look;
        look = (low + high) / 2;
    }
    return low;
}

template <unsigned Entries>
__device__ void copy_all(const BatchTable<Entries>& table) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned warps = gridDim.x * batch_warps;
    for (unsigned tile = blockIdx.x * batch_warps + threadIdx.x / 32; tile < table.tiles; tile += warps) {
        const unsigned index = entry_of(table, tile);
        const BatchEntry& entry = table.entries[index];
        const unsigned first = index > 0 ? table.entries[index - 1].end_tile : 0;
        const unsigned at = (tile - first) * batch_tile;
        const unsigned bytes = entry.bytes - at < batch_tile ? entry.bytes - at : batch_tile;
        copy_tile_by_alignment(reinterpret_cast<char*>(entry.to) + at,
                               reinterpret_cast<const char*>(entry.from) + at, bytes, lane);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(batch_threads)
    sidestep_batch_small(const __grid_constant__ BatchTable<small_batch> table) {
    copy_all(table);
}

extern "C" __global__ void __launch_bounds__(batch_threads)
    sidestep_batch_large(const __grid_constant__ BatchTable<large_batch> table) {
    copy_all(table);
}
