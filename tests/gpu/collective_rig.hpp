// Real GPUs for the suite of tests/unit/collective_seat, and what the tests of this folder need beside it.
#pragma once

#include <string>
#include <vector>

#include "protocol/collective_task.hpp"
#include "tests/gpu/gpu_machine.hpp"
#include "tests/unit/collective_seat/jobs.hpp"

namespace sidestep::gpu_tests {

// Ranks sit on the machine's GPUs in turn, rank r on GPU r modulo their number; each has a stream of its own.
int gpu_of(unsigned rank);

// Tasks that `enqueue` puts on a stream of a rank's GPU, as a graph.
class CapturedTasks {
public:
    // Those by which a seat keeps its tasks in order.
    enum class Events { kept, removed };
    // `enqueue` is called with the stream.
    template <typename Enqueue>
    CapturedTasks(unsigned rank, void* stream, Enqueue enqueue, Events events = Events::kept)
        : rank_(rank), stream_(static_cast<CUstream>(stream)) {
        begin();
        enqueue(stream);
        end(events);
    }
    CapturedTasks(CapturedTasks&& other) noexcept
        : rank_(other.rank_), stream_(other.stream_), graph_(std::exchange(other.graph_, nullptr)) {}
    CapturedTasks& operator=(CapturedTasks&&) = delete;
    ~CapturedTasks();

    void launch() const;
    // Until the stream has nothing more to do. False: it took more than `seconds`.
    bool wait(int seconds = 60) const;

private:
    void begin() const;
    void end(Events events);

    unsigned rank_;
    CUstream stream_;
    CUgraphExec graph_ = nullptr;
};

// A second stream of a capture, which begins with what the first one has by now, and joins it again.
class ForkedStream {
public:
    ForkedStream(unsigned rank, void* from, void* to);
    ~ForkedStream();
    ForkedStream(const ForkedStream&) = delete;
    ForkedStream& operator=(const ForkedStream&) = delete;
    void* stream() const { return to_; }

private:
    void wait(void* stream, void* for_other) const;
    unsigned rank_;
    void* from_;
    void* to_;
};

}  // namespace sidestep::gpu_tests
