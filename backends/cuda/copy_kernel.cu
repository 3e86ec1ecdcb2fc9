// Copies with loads and stores; used over peer-mapped memory and inside one GPU.
//
// One variant for each width that both addresses can be brought to: the bytes before the first aligned
// word and after the last are copied one by one, by the first threads of the grid.

template <typename Word>
__device__ void copy(char* to, const char* from, unsigned long long bytes) {
    // Loads in flight a thread before the first store. 4 x 16 B x 512 threads on each of 132 SMs is 4.3 MB,
    // well above the 311 KB that NVLink holds in flight on H200 (376 GB/s x 827 ns).
    constexpr int unroll = 4;
    constexpr unsigned long long width = sizeof(Word);

    unsigned long long head = (width - reinterpret_cast<unsigned long long>(to) % width) % width;
    if (head > bytes) head = bytes;
    const unsigned long long words = (bytes - head) / width;
    const unsigned long long tail = bytes - head - words * width;

    const unsigned long long thread = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
    if (thread < head) to[thread] = from[thread];
    if (thread < tail) to[bytes - 1 - thread] = from[bytes - 1 - thread];

    Word* out = reinterpret_cast<Word*>(to + head);
    const Word* in = reinterpret_cast<const Word*>(from + head);
    const unsigned long long tile = static_cast<unsigned long long>(blockDim.x) * unroll;
    for (unsigned long long base = blockIdx.x * tile; base < words; base += gridDim.x * tile) {
        const unsigned long long first = base + threadIdx.x;
        Word held[unroll];
        if (base + tile <= words) {
#pragma unroll
            for (int i = 0; i < unroll; ++i) held[i] = __ldcs(in + first + i * blockDim.x);
#pragma unroll
            for (int i = 0; i < unroll; ++i) __stcs(out + first + i * blockDim.x, held[i]);
        } else {
            for (unsigned long long at = first; at < words; at += blockDim.x) out[at] = in[at];
        }
    }
}

extern "C" __global__ void __launch_bounds__(512)
    sidestep_copy_16(char* to, const char* from, unsigned long long bytes) {
    copy<uint4>(to, from, bytes);
}

extern "C" __global__ void __launch_bounds__(512)
    sidestep_copy_8(char* to, const char* from, unsigned long long bytes) {
    copy<uint2>(to, from, bytes);
}

extern "C" __global__ void __launch_bounds__(512)
    sidestep_copy_4(char* to, const char* from, unsigned long long bytes) {
    copy<unsigned int>(to, from, bytes);
}

extern "C" __global__ void __launch_bounds__(512)
    sidestep_copy_2(char* to, const char* from, unsigned long long bytes) {
    copy<unsigned short>(to, from, bytes);
}

extern "C" __global__ void __launch_bounds__(512)
    sidestep_copy_1(char* to, const char* from, unsigned long long bytes) {
    copy<unsigned char>(to, from, bytes);
}
