#include "backends/cuda/collective/copy_streams.hpp"

#include <fmt/format.h>

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
    SIDESTEP_TRY(streams_, seats_.urgent.of(gpu_));
    return {};
}

// Where something is still to be written the words stay with it.
CopyStreams::~CopyStreams() {
    if (ended_ && quiet()) seats_.pages.give_back(ended_);
}

Result<void> CopyStreams::copy(unsigned lane, char* to, const char* from, std::uint64_t bytes) {
    const CUresult status =
        cuda().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes,
                             (*streams_)[stream_of(lane)].get());
    return cuda().check(status, "cuMemcpyAsync");
}

Result<std::uint64_t> CopyStreams::mark(unsigned lane) {
    return mark_stream(stream_of(lane));
}

// With CU_STREAM_WRITE_VALUE_DEFAULT the word is seen after all that came before it on the stream, by the whole system.
Result<std::uint64_t> CopyStreams::mark_stream(unsigned index) {
    const CUresult status =
        cuda().cuStreamWriteValue64((*streams_)[index].get(), ended_on_gpu_ + index * sizeof(std::uint64_t),
                                    marks_[index] + 1, CU_STREAM_WRITE_VALUE_DEFAULT);
    SIDESTEP_CHECK(cuda().check(status, "cuStreamWriteValue64"));
    return ++marks_[index];
}

std::uint64_t CopyStreams::ended(unsigned lane) {
    return std::atomic_ref(ended_[stream_of(lane)]).load(std::memory_order_acquire);
}

void CopyStreams::close() {
    for (unsigned index = 0; index < UrgentStreams::each; ++index) static_cast<void>(mark_stream(index));
}

bool CopyStreams::quiet() {
    for (unsigned index = 0; index < UrgentStreams::each; ++index)
        if (ended(index) < marks_[index]) return false;
    return true;
}

std::string CopyStreams::missing() {
    std::string text;
    for (unsigned index = 0; index < UrgentStreams::each; ++index) {
        const std::uint64_t done = ended(index);
        if (done < marks_[index])
            text += fmt::format("{}stream {}: {} of {} marks", text.empty() ? "" : ", ", index, done, marks_[index]);
    }
    return text;
}

}  // namespace sidestep::backends::cuda
