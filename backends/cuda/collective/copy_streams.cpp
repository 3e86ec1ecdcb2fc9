#include "backends/cuda/collective/copy_streams.hpp"

#include "base/try.hpp"

namespace sidestep::backends::cuda {

Result<std::unique_ptr<CopyStreams>> CopyStreams::create(Seats& seats, Gpu& gpu, const CopyPost& post) {
    std::unique_ptr<CopyStreams> streams(new CopyStreams(seats, gpu, post));
    SIDESTEP_CHECK(streams->set_up());
    return streams;
}

Result<void> CopyStreams::set_up() {
    SIDESTEP_TRY(void* const words, seats_.pages.take());
    ended_ = static_cast<std::uint64_t*>(words);
    const CUresult status = cuda().cuMemHostGetDevicePointer(&ended_on_gpu_, words, 0);
    SIDESTEP_CHECK(cuda().check(status, "cuMemHostGetDevicePointer"));
    for (unsigned lane = 0; lane < post_.ranks; ++lane) {
        SIDESTEP_TRY(auto stream, driver::CudaStream::create_urgent(gpu_.context()));
        streams_.push_back(std::move(stream));
    }
    return {};
}

CopyStreams::~CopyStreams() {
    if (ended_) seats_.pages.give_back(ended_);
}

Result<void> CopyStreams::copy(unsigned lane, char* to, const char* from, std::uint64_t bytes) {
    const CUresult status =
        cuda().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes,
                             streams_[lane].get());
    return cuda().check(status, "cuMemcpyAsync");
}

// With CU_STREAM_WRITE_VALUE_DEFAULT the word is seen after all that came before it on the stream, by the whole system.
Result<std::uint64_t> CopyStreams::mark(unsigned lane) {
    const CUresult status =
        cuda().cuStreamWriteValue64(streams_[lane].get(), ended_on_gpu_ + lane * sizeof(std::uint64_t),
                                    ++marks_[lane], CU_STREAM_WRITE_VALUE_DEFAULT);
    SIDESTEP_CHECK(cuda().check(status, "cuStreamWriteValue64"));
    return marks_[lane];
}

std::uint64_t CopyStreams::ended(unsigned lane) {
    return std::atomic_ref(ended_[lane]).load(std::memory_order_acquire);
}

bool CopyStreams::quiet() {
    for (const auto& stream : streams_)
        if (cuda().cuStreamQuery(stream.get()) == CUDA_ERROR_NOT_READY) return false;
    return true;
}

}  // namespace sidestep::backends::cuda
