// The benchmark's kernels (bench/raw_kernels.cu), each done by the stream's thread with the host's clock.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "tests/fake_cuda/machine.hpp"

namespace sidestep::fake_cuda {
namespace {

using Word = unsigned long long;

template <typename T>
T argument(void** arguments, int index) {
    return *static_cast<T*>(arguments[index]);
}

Word now_ns() {
    return static_cast<Word>(std::chrono::steady_clock::now().time_since_epoch() /
                             std::chrono::nanoseconds(1));
}

std::atomic_ref<Word> word(CUdeviceptr address) {
    return std::atomic_ref(*reinterpret_cast<Word*>(address));
}

bool all_reached(int device, std::initializer_list<CUdeviceptr> words) {
    Machine& machine = Machine::get();
    std::lock_guard lock(machine.mutex);
    for (const CUdeviceptr address : words)
        if (!machine.reaches(device, address, sizeof(Word))) return false;
    return true;
}

CUresult chase(int device, void** arguments, Word, Work& work) {
    const auto start = argument<CUdeviceptr>(arguments, 0), out = argument<CUdeviceptr>(arguments, 2);
    const auto steps = argument<Word>(arguments, 1);
    if (!all_reached(device, {start, out})) return CUDA_ERROR_ILLEGAL_ADDRESS;
    work = [=] {
        const Word begin = now_ns();
        CUdeviceptr at = start;
        for (Word i = 0; i < steps; ++i) at = word(at).load(std::memory_order_relaxed);
        word(out + 8) = at;
        word(out) = now_ns() - begin;
    };
    return CUDA_SUCCESS;
}

CUresult flags(int device, void** arguments, Word, Work& work) {
    const auto mine = argument<CUdeviceptr>(arguments, 0), theirs = argument<CUdeviceptr>(arguments, 1);
    const auto warm = argument<Word>(arguments, 2), rounds = argument<Word>(arguments, 3);
    const bool first = argument<Word>(arguments, 4) != 0;
    const auto stop = argument<CUdeviceptr>(arguments, 5), out = argument<CUdeviceptr>(arguments, 7);
    const auto limit_ns = argument<Word>(arguments, 6);
    if (!all_reached(device, {mine, theirs, stop, out})) return CUDA_ERROR_ILLEGAL_ADDRESS;
    work = [=] {
        const Word deadline = now_ns() + limit_ns;
        Word begin = 0;
        for (Word round = 1; round <= warm + rounds; ++round) {
            if (round == warm + 1) begin = now_ns();
            if (first) word(theirs) = round;
            while (word(mine) < round) {
                if (now_ns() > deadline || word(stop) != 0) {
                    word(out + 8) = round;
                    return;
                }
                std::this_thread::yield();
            }
            if (!first) word(theirs) = round;
        }
        word(out) = now_ns() - begin;
        word(out + 8) = 0;
    };
    return CUDA_SUCCESS;
}

CUresult adds(int device, void** arguments, Word all_threads, Work& work) {
    const auto counters = argument<CUdeviceptr>(arguments, 0);
    const auto count = argument<Word>(arguments, 1), times = argument<Word>(arguments, 2);
    if (!all_reached(device, {counters, counters + (count - 1) * 8})) return CUDA_ERROR_ILLEGAL_ADDRESS;
    work = [=] {
        for (Word thread = 0; thread < all_threads; ++thread) word(counters + thread % count * 8) += times;
    };
    return CUDA_SUCCESS;
}

CUresult add_chain(int device, void** arguments, Word, Work& work) {
    const auto counter = argument<CUdeviceptr>(arguments, 0), out = argument<CUdeviceptr>(arguments, 2);
    const auto times = argument<Word>(arguments, 1);
    if (!all_reached(device, {counter, out})) return CUDA_ERROR_ILLEGAL_ADDRESS;
    work = [=] {
        const Word begin = now_ns();
        for (Word i = 0; i < times; ++i) word(out + 8) = word(counter)++;
        word(out) = now_ns() - begin;
    };
    return CUDA_SUCCESS;
}

}  // namespace

BenchKernel find_bench_kernel(const char* name) {
    const std::string wanted = name;
    if (wanted == "sidestep_bench_chase") return chase;
    if (wanted == "sidestep_bench_flags") return flags;
    if (wanted == "sidestep_bench_adds") return adds;
    if (wanted == "sidestep_bench_add_chain") return add_chain;
    return nullptr;
}

}  // namespace sidestep::fake_cuda
