// A stream of the made-up driver: a thread that does one thing after the other.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace sidestep::fake_cuda {

struct Context;
using Work = std::function<void()>;
using Flag = std::shared_ptr<std::atomic<bool>>;

class Stream {
public:
    // The thread keeps its stream alive until finish() was called and the work is done.
    // Streams of one queue work one at a time: who waits in it holds up the others.
    using Queue = std::shared_ptr<std::mutex>;
    static std::shared_ptr<Stream> start(Context* context, Queue queue = nullptr);

    Context* context() const { return context_; }
    unsigned long long number() const { return number_; }
    // Waits for room first. A stream that is being captured keeps the work for its graph where `for_graphs`
    // says that the library may put such work there, and refuses it otherwise: whoever waits for it would wait
    // for ever.
    CUresult push(Work work, bool for_graphs = false);
    bool idle();
    void wait_until_idle();
    void finish();

    bool capturing();
    void begin_capture();
    // What was captured, in order.
    std::vector<Work> end_capture();

private:
    // The driver's queue holds about that many; the call that would add one more blocks until the first
    // ends, which may be never (seen on H200, driver 580.159.04).
    static constexpr std::size_t most_entries = 1024;

    Stream(Context* context, Queue queue);
    void run();

    Context* const context_;
    const Queue queue_;  // null: its own
    const unsigned long long number_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> work_;
    bool busy_ = false;
    bool finished_ = false;
    bool capturing_ = false;
    std::vector<Work> captured_;
};

}  // namespace sidestep::fake_cuda
