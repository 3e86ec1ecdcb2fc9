// Who watches streams that wait: a wait of a stream has no deadline and hears of no abort, so the host sees
// to both.
//
// All that a task raises and clears it copies from pinned words that the host can change: tags, and zeros. To
// stop, the host takes the tags away, so that what is let go tells nobody anything that is not so; then it
// makes the zeros copy_release, and writes that to the words of its own arena too: no wait holds any more, of
// whichever task, also in a graph that is launched later.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/copy_steps.hpp"
#include "backends/cuda/collective/seats.hpp"

namespace sidestep::backends::cuda {

// A rank, and its arena.
struct CopyPost {
    unsigned rank = 0;
    unsigned ranks = 1;
    char* arena = nullptr;
};

// What the words of a task are raised to: tags by peer, in pinned memory. All tasks of a signature and the
// same lengths share them.
struct CopyTags {
    backend::CollectiveTask task;  // signature and lengths count
    std::uint32_t index = 0;
    std::uint64_t* arrived = nullptr;  // what this rank raises at others
    std::uint64_t* ready = nullptr;
};

// Any thread may call.
class CopyWatch {
public:
    // `words` tells the deadline and takes the fault.
    static Result<std::unique_ptr<CopyWatch>> create(Seats& seats, Gpu& gpu, const CopyPost& post,
                                                     HostWords& words);
    // No task runs any more.
    ~CopyWatch();
    CopyWatch(const CopyWatch&) = delete;
    CopyWatch& operator=(const CopyWatch&) = delete;

    // They stay as long as this: a graph may hold them. ErrorCode::out_of_memory beyond some thousands.
    Result<const CopyTags*> tags_of(const backend::CollectiveTask& task);

    // What a task writes where it goes on (`begin` and `end` steps), before it begins, and what it clears
    // words with.
    CUdeviceptr progress() const { return on_gpu(&control_->progress); }
    CUdeviceptr number() const { return on_gpu(&control_->number); }
    CUdeviceptr rest() const { return on_gpu(rest_); }
    CUdeviceptr on_gpu(const void* pinned) const;
    static std::uint64_t code_of(const backend::CopyStep& step, std::uint32_t tags);

    // What a task writes to number(): its own number, and outside of the caller's graphs a count of such
    // tasks, which run one after the other. By one thread at a time, like the next ones.
    std::uint64_t next_number(std::uint64_t task, std::uint32_t& count);
    std::uint64_t number_in_graph(std::uint64_t task);
    // Whether a later task than `count` has begun, so that this one has ended. May say no where a graph has
    // run in between.
    bool began_after(std::uint32_t count) const;

    // Never blocks. To be called every few milliseconds, as long as tasks may run: sees words that tell of
    // another task, waits that take too long, and lets tasks go that begin after the stop.
    void look() noexcept;
    // Tasks in flight and to come go on without waiting for anybody.
    void stop() noexcept;
    // Of a wait; 0: none.
    std::chrono::nanoseconds deadline() const {
        return std::chrono::nanoseconds(std::atomic_ref(words_.deadline_ns).load(std::memory_order_acquire));
    }
    bool stopped() const { return stopped_.load(std::memory_order_acquire); }
    // Whether a task was on its way when this was looked at last.
    bool busy() noexcept;

private:
    using Clock = std::chrono::steady_clock;
    struct Control {
        std::uint64_t progress;  // 0: nothing new
        std::uint64_t
            number;  // of the task: in a caller's graph or not (1 bit), the number's end (31), count (32)
    };

    CopyWatch(Seats& seats, Gpu& gpu, const CopyPost& post, HostWords& words)
        : seats_(seats), gpu_(gpu), post_(post), words_(words) {}
    Result<void> set_up();
    const driver::Cuda& cuda() const { return gpu_.context()->cuda(); }
    CUdeviceptr own_word(unsigned row) const {
        return reinterpret_cast<CUdeviceptr>(post_.arena) + backend::ArenaLayout{post_.ranks}.copy_words(row);
    }

    // Of those below, looking_ is held and the context current.
    void note_progress();
    bool waits() const;
    std::optional<CopyTags> tags_now();
    void look_at_words();
    void examine();
    void give_up(backend::FaultRecord record);
    void give_up_if_waiting();
    void stop_now();
    void let_go();
    bool release(unsigned row);

    Seats& seats_;
    Gpu& gpu_;
    const CopyPost post_;
    HostWords& words_;
    Control* control_ = nullptr;  // pinned, like the next two
    std::uint64_t* rest_ = nullptr;
    std::uint64_t* seen_ = nullptr;  // a row of words as it was
    // Of the highest priority: streams of one priority may share a queue of the GPU, where a wait holds up
    // what comes behind it.
    std::optional<driver::CudaStream> stream_;
    std::atomic<bool> stopped_{false};
    std::atomic<std::uint64_t> last_number_{0};
    std::uint32_t count_ = 0;

    std::mutex all_tags_mutex_;  // guards the next; taken within looking_
    std::vector<std::unique_ptr<CopyTags>> all_tags_;

    std::mutex looking_;  // guards what follows
    std::uint64_t at_ = 0;
    Clock::time_point since_;  // that no more progress was seen
    bool reading_ = false;     // seen_ is being written
    bool moved_ = false;       // since then
    bool examined_ = false;    // the words of this wait
    std::optional<unsigned> missing_;
};

}  // namespace sidestep::backends::cuda
