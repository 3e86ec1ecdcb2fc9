#include "backends/cuda/collective/shared_streams.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/try.hpp"

namespace sidestep::backends::cuda {
namespace {

// A copy takes some 10 us, unless a stream that waits holds it up.
constexpr std::chrono::milliseconds max_for_priming{200};

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

bool SharedStreams::Primed::ended() const {
    return std::all_of(words, words + begun, is_set);
}

Result<const std::uint64_t*> SharedStreams::prime(const Gpu& gpu, Direction direction, CUdeviceptr to,
                                                  CUdeviceptr from, const Words& take) {
    std::vector<CUstream> streams;
    for (const Kind kind : {Kind::away, Kind::away_else, Kind::home}) {
        if ((kind == Kind::home) != (direction == Direction::home)) continue;
        SIDESTEP_TRY(const auto list, of(gpu, kind));
        for (const driver::CudaStream& stream : *list) streams.push_back(stream.get());
    }
    const std::lock_guard lock(mutex_);
    Primed& primed = primed_[{gpu.index(), direction}];
    if (primed.marked == streams.size()) return primed.words;
    const driver::Cuda& cuda = gpu.context()->cuda();
    if (!primed.words) {
        SIDESTEP_TRY(void* const taken, take());
        primed.words = static_cast<std::uint64_t*>(taken);
    }
    CUdeviceptr on_gpu = 0;
    SIDESTEP_CHECK(
        cuda.check(cuda.cuMemHostGetDevicePointer(&on_gpu, primed.words, 0), "cuMemHostGetDevicePointer"));
    // Where a call fails the next caller goes on from there, and what has begun is waited for until then.
    for (std::size_t& i = primed.marked; i < streams.size(); ++i) {
        SIDESTEP_CHECK(
            cuda.check(cuda.cuMemcpyAsync(to, from, sizeof(std::uint64_t), streams[i]), "cuMemcpyAsync"));
        primed.begun = i + 1;
        const CUresult status = cuda.cuStreamWriteValue64(streams[i], on_gpu + i * sizeof(std::uint64_t), 1,
                                                          CU_STREAM_WRITE_VALUE_DEFAULT);
        SIDESTEP_CHECK(cuda.check(status, "cuStreamWriteValue64"));
    }
    const auto until = std::chrono::steady_clock::now() + max_for_priming;
    while (!primed.ended() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return primed.words;
}

bool SharedStreams::settled() {
    const std::lock_guard lock(mutex_);
    return std::all_of(primed_.begin(), primed_.end(), [](const auto& one) { return one.second.ended(); });
}

SharedStreams::Waits& SharedStreams::waits(const Gpu& gpu) {
    const std::lock_guard lock(mutex_);
    return waits_[gpu.index()];
}

}  // namespace sidestep::backends::cuda
