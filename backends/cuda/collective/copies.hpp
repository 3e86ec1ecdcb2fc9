// Tasks of Shape::copies on one GPU: copies and stream memory operations, and no kernel.
#pragma once

#include <array>
#include <deque>
#include <list>

#include "backends/cuda/collective/copy_watch.hpp"

namespace sidestep::backends::cuda {

class Copies {
public:
    // ErrorCode::unsupported where streams of the GPU cannot wait for words.
    static Result<std::unique_ptr<Copies>> create(Seats& seats, Gpu& gpu, const CopyPost& post,
                                                  HostWords& words);
    // No task runs any more.
    ~Copies();
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;

    // Where the arenas of all ranks lie, for this GPU.
    using Arenas = std::array<char*, backend::most_ranks>;

    // Enqueues the task; by one thread at a time, in the GPU's context. On a stream that is not captured it
    // goes as a graph of its own, which is kept for the next like it. Waits where a stream's queue is about to be full
    // of tasks that wait for the others, with ErrorCode::timed_out after the deadline; one task of more steps than a
    // queue holds waits for them within the driver.
    Result<void> run(const backend::CollectiveTask& task, const Arenas& arenas, CUstream stream,
                     bool captures);

    CopyWatch& watch() { return *watch_; }

private:
    // A task that was run, for the next one like it.
    struct Graph {
        backend::CollectiveTask task;
        Arenas arenas{};
        CUgraphExec executable = nullptr;
        std::uint32_t launched = 0;  // when last, as CopyWatch counts
        std::size_t steps = 0;
    };
    struct Waiting {
        Flight* end = nullptr;
        std::size_t steps = 0;
    };

    Copies(Gpu& gpu, const CopyPost& post, std::unique_ptr<CopyWatch> watch, driver::CudaStream capturing)
        : gpu_(gpu), post_(post), watch_(std::move(watch)), capturing_(std::move(capturing)) {}
    const driver::Cuda& cuda() const { return gpu_.context()->cuda(); }

    Result<void> put_all(const backend::CollectiveTask& task, const Arenas& arenas, CUstream stream);
    Result<void> put(const backend::CopyStep& step, const backend::CollectiveTask& task, const CopyTags& tags,
                     const Arenas& arenas, CUstream stream);
    Result<void> put_copy(CUdeviceptr to, CUdeviceptr from, std::uint64_t bytes, CUstream stream);
    Result<void> write_number(std::uint64_t code, CUstream stream);
    Result<Graph*> graph_of(const backend::CollectiveTask& task, const Arenas& arenas);
    bool is(const Graph& graph, const backend::CollectiveTask& task, const Arenas& arenas) const;
    Result<void> make_room();
    void forget_ended();
    Result<void> wait_for_room(std::size_t steps);
    Result<CUgraphExec> capture(const backend::CollectiveTask& task, const Arenas& arenas);

    Gpu& gpu_;
    const CopyPost post_;
    const std::unique_ptr<CopyWatch> watch_;
    const driver::CudaStream capturing_;
    std::list<Graph> graphs_;  // the one that was used last in front
    std::deque<Waiting> waiting_;  // launched, in that order, and not seen to have ended
    std::size_t waiting_steps_ = 0;
};

}  // namespace sidestep::backends::cuda
