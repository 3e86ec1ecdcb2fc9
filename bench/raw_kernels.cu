// Kernels that measure what copies cannot: the latency of one load or flag, and additions to another GPU's
// memory. Each is bounded: by a number of steps, or by a clock and a word of the host's.

namespace {

__device__ unsigned long long now_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

}  // namespace

// Follows `steps` pointers from `start` on; out: nanoseconds, and where it ended. One thread. Volatile loads
// pass the GPU's first cache by, and memory of another GPU is kept in no cache of this one.
extern "C" __global__ void sidestep_bench_chase(const unsigned long long* start, unsigned long long steps,
                                                unsigned long long* out) {
    unsigned long long at = reinterpret_cast<unsigned long long>(start);
    const unsigned long long begin = now_ns();
    for (unsigned long long i = 0; i < steps; ++i)
        at = *reinterpret_cast<const volatile unsigned long long*>(at);
    out[1] = at;
    out[0] = now_ns() - begin;
}

// Flags back and forth with the kernel of another GPU. One thread. Whoever is `first` sends, then waits; the
// other waits, then answers. The first `warm` rounds do not count. A wait ends the kernel once `limit_ns`
// have passed since its start or the host has set *stop. out: nanoseconds of the counted rounds, and 0, or
// the round in which it gave up.
extern "C" __global__ void sidestep_bench_flags(volatile unsigned long long* mine,
                                                volatile unsigned long long* theirs, unsigned long long warm,
                                                unsigned long long rounds, unsigned long long first,
                                                const volatile unsigned long long* stop,
                                                unsigned long long limit_ns, unsigned long long* out) {
    constexpr unsigned spins_between_looks = 4096;
    const unsigned long long deadline = now_ns() + limit_ns;
    unsigned long long begin = 0;
    for (unsigned long long round = 1; round <= warm + rounds; ++round) {
        if (round == warm + 1) begin = now_ns();
        if (first) *theirs = round;
        for (unsigned spins = 1; *mine < round; ++spins) {
            if (spins % spins_between_looks != 0) continue;
            if (now_ns() > deadline || *stop != 0) {
                out[1] = round;
                return;
            }
        }
        if (!first) *theirs = round;
    }
    out[0] = now_ns() - begin;
    out[1] = 0;
}

// Every thread adds 1 to its counter `times` times.
extern "C" __global__ void sidestep_bench_adds(unsigned long long* counters, unsigned long long count,
                                               unsigned long long times) {
    const unsigned long long thread = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
    unsigned long long* mine = counters + thread % count;
    for (unsigned long long i = 0; i < times; ++i) atomicAdd_system(mine, 1ull);
}

// One thread, each addition waiting for the one before; out: nanoseconds, and the last value before adding.
extern "C" __global__ void sidestep_bench_add_chain(unsigned long long* counter, unsigned long long times,
                                                    unsigned long long* out) {
    unsigned long long before = 0;
    const unsigned long long begin = now_ns();
    // The counter never reaches 2^63, which the compiler does not know.
    for (unsigned long long i = 0; i < times; ++i) before = atomicAdd_system(counter + (before >> 63), 1ull);
    out[1] = before;
    out[0] = now_ns() - begin;
}
