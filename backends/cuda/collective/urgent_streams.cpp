#include "backends/cuda/collective/urgent_streams.hpp"

#include "base/try.hpp"

namespace sidestep::backends::cuda {

Result<std::shared_ptr<const UrgentStreams::List>> UrgentStreams::of(const Gpu& gpu) {
    const std::lock_guard lock(mutex_);
    auto& list = lists_[gpu.index()];
    if (list) return list;
    List made;
    while (made.size() < each) {
        SIDESTEP_TRY(auto stream, driver::CudaStream::create_urgent(gpu.context()));
        made.push_back(std::move(stream));
    }
    list = std::make_shared<const List>(std::move(made));
    return list;
}

}  // namespace sidestep::backends::cuda
