// A stream of one GPU on which work of others is timed and captured into a graph.
#pragma once

#include <functional>
#include <memory>

#include <sidestep/result.hpp>

namespace sidestep::bench::raw {

// Belongs to one thread. The destructor waits for the stream.
class Timeline {
public:
    static Result<std::unique_ptr<Timeline>> open(int gpu);
    ~Timeline();
    Timeline(const Timeline&) = delete;
    Timeline& operator=(const Timeline&) = delete;

    // A CUstream.
    void* stream() const;
    // Makes the GPU's context current on this thread.
    Result<void> use();

    // Enqueues `before`, an event, `work` and another event; microseconds between the events, once the second
    // has passed.
    Result<double> us(const std::function<Result<void>()>& before, const std::function<Result<void>()>& work);

    // What `work` enqueues becomes a graph, in place of the one before.
    Result<void> capture(const std::function<Result<void>()>& work);
    // Destroys the graph, which nothing runs any more. A communicator of NCCL whose work is in one waits for
    // that when it is destroyed.
    void forget();
    // Enqueues the graph.
    Result<void> launch();

    // Until the stream is empty; ErrorCode::timed_out after two minutes.
    Result<void> wait();

private:
    struct State;
    explicit Timeline(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace sidestep::bench::raw
