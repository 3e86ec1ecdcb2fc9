#include "backends/cuda/collective/task_order.hpp"

#include <algorithm>

#include "base/try.hpp"

namespace sidestep::backends::cuda {

Result<std::unique_ptr<TaskOrder>> TaskOrder::create(std::shared_ptr<const driver::Cuda> cuda) {
    SIDESTEP_TRY(auto on_streams, driver::CudaEvent::create(cuda));
    SIDESTEP_TRY(auto in_graphs, driver::CudaEvent::create(cuda));
    return std::unique_ptr<TaskOrder>(
        new TaskOrder(std::move(cuda), std::move(on_streams), std::move(in_graphs)));
}

Result<TaskOrder::Seen> TaskOrder::look(CUstream stream) const {
    Seen seen;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUgraphNode* nodes = nullptr;
    const CUgraphEdgeData* edges = nullptr;  // without it, edges between kernels would be an error
    std::size_t count = 0;
    SIDESTEP_CHECK(cuda_->check(
        cuda_->cuStreamGetCaptureInfo_v3(stream, &status, &seen.capture, &seen.graph, &nodes, &edges, &count),
        "cuStreamGetCaptureInfo"));
    if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return cuda_->error(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "cuStreamGetCaptureInfo");
    seen.captures = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (seen.captures) seen.ends.assign(nodes, nodes + count);
    return seen;
}

TaskOrder::Capture& TaskOrder::capture_of(cuuint64_t id) {
    const auto found =
        std::find_if(captures_.begin(), captures_.end(), [id](const Capture& one) { return one.id == id; });
    if (found != captures_.end()) return *found;
    if (captures_.size() == max_captures) captures_.erase(captures_.begin());
    return captures_.emplace_back(Capture{.id = id});
}

Result<void> TaskOrder::wait(CUstream stream, const driver::CudaEvent& event, unsigned flags) const {
    return cuda_->check(cuda_->cuStreamWaitEvent(stream, event.get(), flags), "cuStreamWaitEvent");
}

Result<bool> TaskOrder::begin(CUstream stream) {
    SIDESTEP_TRY(const Seen seen, look(stream));
    SIDESTEP_CHECK(seen.captures ? begin_in_capture(stream, seen) : begin_on_stream(stream));
    return seen.captures;
}

Result<void> TaskOrder::begin_on_stream(CUstream stream) {
    unsigned long long number = 0;  // which is not to be had of a stream that is captured
    SIDESTEP_CHECK(cuda_->check(cuda_->cuStreamGetId(stream, &number), "cuStreamGetId"));
    if (recorded_ && number != last_stream_) SIDESTEP_CHECK(wait(stream, on_streams_, CU_EVENT_WAIT_DEFAULT));
    last_stream_ = number;
    if (!captured_) return {};
    // A wait that is over already would still keep the kernel from coming early.
    const CUresult launched = cuda_->cuEventQuery(in_graphs_.get());
    if (launched == CUDA_ERROR_NOT_READY) return wait(stream, in_graphs_, CU_EVENT_WAIT_DEFAULT);
    return cuda_->check(launched, "cuEventQuery");
}

Result<void> TaskOrder::begin_in_capture(CUstream stream, const Seen& seen) {
    captured_ = true;
    const Capture& before = capture_of(seen.capture);
    if (before.ends.empty()) {
        SIDESTEP_CHECK(wait(stream, on_streams_, CU_EVENT_WAIT_EXTERNAL));
        return wait(stream, in_graphs_, CU_EVENT_WAIT_EXTERNAL);
    }
    if (stream == before.stream) return {};
    std::vector<CUgraphNode> missing;
    for (CUgraphNode node : before.ends)
        if (std::find(seen.ends.begin(), seen.ends.end(), node) == seen.ends.end()) missing.push_back(node);
    if (missing.empty()) return {};
    return cuda_->check(
        cuda_->cuStreamUpdateCaptureDependencies_v2(stream, missing.data(), nullptr, missing.size(),
                                                    CU_STREAM_ADD_CAPTURE_DEPENDENCIES),
        "cuStreamUpdateCaptureDependencies");
}

Result<void> TaskOrder::end(CUstream stream, bool captures) {
    if (captures) return end_in_capture(stream);
    const CUresult status = cuda_->cuEventRecord(on_streams_.get(), stream);
    (status == CUDA_SUCCESS ? recorded_ : lost_) = true;
    return cuda_->check(status, "cuEventRecord");
}

Result<void> TaskOrder::end_in_capture(CUstream stream) {
    SIDESTEP_TRY(const Seen seen, look(stream));
    Capture& capture = capture_of(seen.capture);
    SIDESTEP_CHECK(move_record(capture, seen));
    capture.stream = stream;
    capture.ends = seen.ends;
    return {};
}

// One node for the whole graph, off the way from task to task: it moves behind each as it comes.
Result<void> TaskOrder::move_record(Capture& capture, const Seen& seen) const {
    if (!capture.record)
        return cuda_->check(cuda_->cuGraphAddEventRecordNode(&capture.record, seen.graph, seen.ends.data(),
                                                             seen.ends.size(), in_graphs_.get()),
                            "cuGraphAddEventRecordNode");
    const std::vector<CUgraphNode> from(capture.ends.size(), capture.record);
    SIDESTEP_CHECK(cuda_->check(cuda_->cuGraphRemoveDependencies_v2(seen.graph, capture.ends.data(),
                                                                    from.data(), nullptr, from.size()),
                                "cuGraphRemoveDependencies"));
    const std::vector<CUgraphNode> to(seen.ends.size(), capture.record);
    return cuda_->check(
        cuda_->cuGraphAddDependencies_v2(seen.graph, seen.ends.data(), to.data(), nullptr, to.size()),
        "cuGraphAddDependencies");
}

CUresult TaskOrder::on_streams() const {
    return recorded_ ? cuda_->cuEventQuery(on_streams_.get()) : CUDA_SUCCESS;
}

CUresult TaskOrder::anywhere() const {
    const CUresult status = on_streams();
    return status == CUDA_SUCCESS && captured_ ? cuda_->cuEventQuery(in_graphs_.get()) : status;
}

}  // namespace sidestep::backends::cuda
