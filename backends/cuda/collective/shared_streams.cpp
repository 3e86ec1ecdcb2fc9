#include "backends/cuda/collective/shared_streams.hpp"

#include "base/try.hpp"

namespace sidestep::backends::cuda {

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

std::atomic<std::uint64_t>& SharedStreams::waits(const Gpu& gpu) {
    const std::lock_guard lock(mutex_);
    return waits_[gpu.index()];
}

}  // namespace sidestep::backends::cuda
