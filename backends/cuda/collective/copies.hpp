// Tasks of Shape::copies on one GPU: copies, and no kernel of this library.
//
// The caller's stream does two things for a task, alike on a stream and in a graph: it closes a gate, a word
// in pinned memory that then tells which task has come, and waits until the gate is open again. Between the
// two it copies the block that stays on this rank. A thread sees the closed gate, does the rank's part of the
// exchange with the others (backend/copy_exchange.hpp) with copies on other streams, and opens the gate. A
// wait of a stream has no deadline and hears of no abort: the thread sees to both, by opening the gate early.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "backends/cuda/collective/copy_streams.hpp"

namespace sidestep::backends::cuda {

class Copies {
public:
    // ErrorCode::unsupported where streams of the GPU cannot wait for words. `words` tells the deadline and
    // takes the fault.
    static Result<std::unique_ptr<Copies>> create(Seats& seats, Gpu& gpu, const CopyPost& post,
                                                  HostWords& words);
    ~Copies();
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;

    // Enqueues the task; by one thread at a time, in the GPU's context. Waits where a stream's queue is about
    // to be full of tasks that wait for the others, with ErrorCode::timed_out after the deadline.
    Result<void> run(const protocol::CollectiveTask& task, CUstream stream, bool captures);

    // The next ones: any thread.

    // Never blocks. To be called every few milliseconds as long as tasks may run: opens the gate where the
    // thread does not come to it, since the driver holds it up in a call.
    void look() noexcept;
    // Tasks in flight and to come go on without waiting for anybody, once copies that have begun have ended.
    void stop() noexcept;
    // Ends the thread: from then on no task ends, and the driver is not called any more.
    void halt() noexcept;
    // A stream has closed the gate, or is still to.
    bool busy() const { return gate() != open_gate || waiting_.load() != 0; }

private:
    using Clock = std::chrono::steady_clock;
    struct Plan {
        protocol::CollectiveTask task;
        bool captured = false;  // stays: its graph may be launched again
    };
    static constexpr std::uint64_t open_gate = 0;

    Copies(Seats& seats, Gpu& gpu, const CopyPost& post, HostWords& words)
        : seats_(seats), gpu_(gpu), post_(post), words_(words) {}
    Result<void> set_up();
    const driver::Cuda& cuda() const { return gpu_.context()->cuda(); }
    std::uint64_t gate() const { return std::atomic_ref(*gate_).load(std::memory_order_acquire); }
    bool stopped() const { return stopped_.load(std::memory_order_acquire); }
    std::chrono::nanoseconds deadline() const {
        return std::chrono::nanoseconds(std::atomic_ref(words_.deadline_ns).load(std::memory_order_acquire));
    }

    std::uint64_t keep(const protocol::CollectiveTask& task, bool captures);
    void forget(std::uint64_t code);
    Plan* find(std::uint64_t code);
    Result<void> wait_for_room();
    Result<void> close_gate(std::uint64_t code, CUstream stream);
    Result<void> wait_at_gate(const protocol::CollectiveTask& task, CUstream stream);

    // Of the thread.
    void serve() noexcept;
    void rest(Clock::time_point& since);
    void carry_out(std::uint64_t code);
    void look_up(protocol::CollectiveTask& task);
    void let_stream_wait(const Plan& plan, std::uint64_t code);
    bool exchange(const Plan& plan, std::uint64_t code);
    void say_held_up();
    void wait_for_copies();
    void beat() { beat_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed); }

    void give_up(const protocol::FaultRecord& record, std::uint64_t code);
    void write_fault(protocol::FaultRecord record, std::uint64_t code);

    Seats& seats_;
    Gpu& gpu_;
    const CopyPost post_;
    HostWords& words_;
    std::unique_ptr<CopyStreams> streams_;
    std::uint64_t* gate_ = nullptr;
    CUdeviceptr gate_on_gpu_ = 0;
    protocol::CopyCounters counters_;  // of the thread, like the next one
    Clock::time_point moved_at_;       // when something of the task went on last
    std::atomic<bool> stopped_{false};
    std::atomic<bool> halts_{false};
    std::atomic<Clock::rep> beat_{0};  // when the thread was seen last
    // The last code outside of graphs that a stream was told to wait for.
    std::atomic<std::uint64_t> enqueued_{0};
    std::atomic<unsigned> waiting_{0};  // tasks outside of graphs that have not ended
    std::atomic<bool> captured_{false};

    std::mutex mutex_;  // guards what follows, and the fault
    std::condition_variable due_;
    std::unordered_map<std::uint64_t, Plan> plans_;
    std::uint64_t last_ = 0;

    std::mutex joining_;
    std::thread thread_;
};

}  // namespace sidestep::backends::cuda
