#include "backends/cuda/collective/shared_streams.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/try.hpp"

namespace sidestep::backends::cuda {
namespace {

// A copy takes some 10 us, unless a stream that waits holds it up.
constexpr std::chrono::milliseconds most_for_priming{200};

bool is_set(const std::uint64_t& word) {
    return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire) != 0;
}

}  // namespace

Result<std::shared_ptr<const SharedStreams::List>> SharedStreams::of(const Gpu& gpu, Kind kind) {
    const std::lock_guard lock(mutex_);
    auto& list = lists_[{gpu.index(), kind}];
    if (list) return list;
    List made;
    while (made.size() < how_many[static_cast<std::size_t>(kind)]) {
        SIDESTEP_TRY(auto stream, driver::CudaStream::create_urgent(gpu.context()));
        made.push_back(std::move(stream));
    }
    list = std::make_shared<const List>(std::move(made));
    return list;
}

Result<const std::uint64_t*> SharedStreams::prime(const Gpu& gpu, CUdeviceptr to, CUdeviceptr from, const Words& take) {
    SIDESTEP_TRY(const auto usual, of(gpu, Kind::away));
    SIDESTEP_TRY(const auto others, of(gpu, Kind::away_else));
    const std::lock_guard lock(mutex_);
    auto& words = primed_[gpu.index()];
    if (words) return words;
    const driver::Cuda& cuda = gpu.context()->cuda();
    SIDESTEP_TRY(void* const taken, take());
    CUdeviceptr on_gpu = 0;
    SIDESTEP_CHECK(cuda.check(cuda.cuMemHostGetDevicePointer(&on_gpu, taken, 0), "cuMemHostGetDevicePointer"));
    for (unsigned i = 0; i < all_away; ++i) {
        const CUstream stream = i < usual->size() ? (*usual)[i].get() : (*others)[i - usual->size()].get();
        SIDESTEP_CHECK(cuda.check(cuda.cuMemcpyAsync(to, from, sizeof(std::uint64_t), stream), "cuMemcpyAsync"));
        const CUresult status = cuda.cuStreamWriteValue64(stream, on_gpu + i * sizeof(std::uint64_t), 1,
                                                          CU_STREAM_WRITE_VALUE_DEFAULT);
        SIDESTEP_CHECK(cuda.check(status, "cuStreamWriteValue64"));
    }
    words = static_cast<std::uint64_t*>(taken);
    const auto until = std::chrono::steady_clock::now() + most_for_priming;
    while (!std::all_of(words, words + all_away, is_set) && std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
    return words;
}

bool SharedStreams::settled() {
    const std::lock_guard lock(mutex_);
    return std::all_of(primed_.begin(), primed_.end(), [](const auto& one) {
        return one.second == nullptr || std::all_of(one.second, one.second + all_away, is_set);
    });
}

std::atomic<std::uint64_t>& SharedStreams::waits(const Gpu& gpu) {
    const std::lock_guard lock(mutex_);
    return waits_[gpu.index()];
}

}  // namespace sidestep::backends::cuda
