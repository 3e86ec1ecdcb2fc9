// Streams of the made-up driver, and the queues of a GPU that carry what is put into them.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace sidestep::fake_cuda {

struct Context;
using Work = std::function<void()>;
using Flag = std::shared_ptr<std::atomic<bool>>;

// What was captured; an executable graph is a copy of it. The nodes of events are carried out around the work, wherever
// they were put: `waits` first, `records` last.
struct Graph {
    std::vector<Work> work;
    std::vector<CUevent> waits = {};
    std::vector<CUevent> records = {};
};

// One thing after the other, in the order in which they were put in: what waits holds up all behind it, of
// whatever stream.
class Queue : public std::enable_shared_from_this<Queue> {
public:
    // Its thread keeps it alive, from the first one on until finish() was called and the work is done.
    void push(Work work);
    void finish();

private:
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> work_;
    bool started_ = false;
    bool finished_ = false;
};

// Which kind of queue carries an operation.
enum class Carrier {
    compute,  // kernels, copies within a GPU, small ones from the host
    peer,     // copies between GPUs
    other,    // large ones from the host, and to it: nobody else's are held up by them
    last,  // waits, words, events: whichever carried the stream's last operation, at first the one for kernels
};

// The queues of a GPU, as seen on H200 (driver 580): streams take the one for kernels in turn as they are
// made, and the one for copies to other GPUs in turn as they first need it. CUDA_DEVICE_MAX_CONNECTIONS tells
// how many there are of the former, as it was when the program began.
class Queues {
public:
    static constexpr unsigned by_default = 8;
    Queues();
    // FAKE_CUDA_ONE_QUEUE is set while streams are made that all use one.
    Queue* next_for_compute();
    Queue* next_for_peers();

private:
    std::vector<std::shared_ptr<Queue>> compute_, peers_;
    std::atomic<unsigned> next_compute_{0}, next_peer_{0};
};

class Stream : public std::enable_shared_from_this<Stream> {
public:
    // Without queues, one of its own for everything.
    static std::shared_ptr<Stream> make(Context* context, Queues* queues = nullptr);

    Context* context() const { return context_; }
    unsigned long long number() const { return number_; }
    // Waits for room first. A stream that is being captured keeps the work for its graph where `for_graphs`
    // says that the library may put such work there, and refuses it otherwise: whoever waits for it would
    // wait for ever.
    CUresult push(Work work, bool for_graphs = false, Carrier carrier = Carrier::compute);
    bool idle();
    void wait_until_idle();
    // Nothing more is to come.
    void finish() { own_->finish(); }

    // While the stream is being captured: the graph that it becomes, which the machine's mutex guards. Else null.
    Graph* captured();
    void begin_capture();
    std::unique_ptr<Graph> end_capture();
    // No two captures of a process have the same.
    unsigned long long capture_number();

private:
    // The driver's queue holds about that many; the call that would add one more blocks until the first
    // ends, which may be never (seen on H200, driver 580.159.04).
    static constexpr std::uint64_t max_entries = 1024;

    Stream(Context* context, Queues* queues);
    Queue* queue_for(Carrier carrier);
    void carry_out(std::uint64_t number, const Work& work);

    Context* const context_;
    Queues* const queues_;
    const unsigned long long number_;
    const std::shared_ptr<Queue> own_ = std::make_shared<Queue>();
    Queue* const compute_;
    std::mutex mutex_;  // of all that follows
    std::condition_variable changed_;
    Queue* peer_ = nullptr;
    Queue* last_;
    std::uint64_t pushed_ = 0, done_ = 0;
    std::unique_ptr<Graph> captured_;
    unsigned long long capture_number_ = 0;
};

}  // namespace sidestep::fake_cuda
