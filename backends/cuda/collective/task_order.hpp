// The order of a seat's tasks, whatever streams and graphs they are put into: each begins when the one that was
// enqueued before it has ended. Where two kernels of a rank ran at a time, they would take each other's flags and
// bytes for their own.
//
// Between streams an event does it. A graph is launched later, any number of times: before its first task it waits for
// that event and for a second one, and behind its last task it records the second one. Tasks on streams wait for that
// one too, as long as a launch is under way. The driver takes both as they are when the graph is launched (NCCL orders
// graphs in this way, its "strong streams"). Within a capture, streams that do not follow each other get an edge.
//
// A graph with these nodes cannot be the body of a conditional node, nor be launched from the device: CUDA allows no
// nodes of events there.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "driver/cuda_handles.hpp"

namespace sidestep::backends::cuda {

class TaskOrder {
public:
    // In the context of the seat's GPU, as the calls that follow.
    static Result<std::unique_ptr<TaskOrder>> create(std::shared_ptr<const driver::Cuda> cuda);

    // Around the calls that enqueue a task; by one thread at a time. begin() answers whether the stream is being
    // captured, which end() is told. What begin() has put into the stream does no harm if the task is refused.
    Result<bool> begin(CUstream stream);
    Result<void> end(CUstream stream, bool captures);

    // Any thread. CUDA_ERROR_NOT_READY while tasks on streams are under way; and those of graphs launched so far.
    CUresult on_streams() const;
    CUresult anywhere() const;
    // A task is on a stream, and nothing tells when it has ended.
    bool lost() const { return lost_; }

private:
    // A stream as it is now. `ends`: of a capture, the nodes that the next one will come behind.
    struct Seen {
        bool captures = false;
        cuuint64_t capture = 0;
        CUgraph graph = nullptr;
        std::vector<CUgraphNode> ends;
    };
    // What was captured of this seat's tasks.
    struct Capture {
        cuuint64_t id = 0;
        CUstream stream = nullptr;      // of the last task
        std::vector<CUgraphNode> ends;  // behind it
        CUgraphNode record = nullptr;   // of in_graphs_, behind `ends`
    };
    // Captures that take turns. One that is forgotten begins anew, with a record of its own: so not too few.
    static constexpr std::size_t max_captures = 16;

    TaskOrder(std::shared_ptr<const driver::Cuda> cuda, driver::CudaEvent on_streams,
              driver::CudaEvent in_graphs)
        : cuda_(std::move(cuda)), on_streams_(std::move(on_streams)), in_graphs_(std::move(in_graphs)) {}
    Result<Seen> look(CUstream stream) const;
    Capture& capture_of(cuuint64_t id);
    Result<void> begin_on_stream(CUstream stream);
    Result<void> begin_in_capture(CUstream stream, const Seen& seen);
    Result<void> end_in_capture(CUstream stream);
    Result<void> wait(CUstream stream, const driver::CudaEvent& event, unsigned flags) const;
    Result<void> move_record(Capture& capture, const Seen& seen) const;

    const std::shared_ptr<const driver::Cuda> cuda_;
    const driver::CudaEvent on_streams_, in_graphs_;
    std::atomic<bool> recorded_{false};  // on_streams_
    std::atomic<bool> lost_{false};
    std::atomic<bool> captured_{false};   // some task, ever
    unsigned long long last_stream_ = 0;  // its driver-wide number
    std::vector<Capture> captures_;
};

}  // namespace sidestep::backends::cuda
