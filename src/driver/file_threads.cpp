#include "driver/file_threads.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "driver/target_map.hpp"

namespace sidestep::driver {
namespace {

// A thread that sleeps is woken late (on a virtual machine's idle processor after tens of microseconds), and
// waking it costs the caller ten; one that works takes its next part at once. So with Wake::when_behind one
// part in line for so many threads at work is left to them, and who has nothing to do looks out for a while
// before it sleeps.
constexpr std::size_t working_for_one_in_line = 4;
constexpr auto looks_out_for = std::chrono::microseconds(300);

// A part that takes so long hangs, if any does.
constexpr auto hangs_after = std::chrono::milliseconds(500);

// Bytes moved, or -errno.
std::int64_t carry_out(const FileRequest& request) {
    if (request.mapped != nullptr)
        return copy_into_map(request.mapped, request.address, request.size)
                   ? static_cast<std::int64_t>(request.size)
                   : -EFAULT;
    const auto offset = static_cast<off_t>(request.offset);
    const auto moved = request.write ? ::pwrite(request.fd, request.address, request.size, offset)
                                     : ::pread(request.fd, request.address, request.size, offset);
    return moved < 0 ? -static_cast<std::int64_t>(errno) : moved;
}

// A request on its way: handed to the threads part by part.
struct Order {
    FileRequest request;
    std::size_t in_line = 0;     // parts that no thread has taken
    std::size_t unfinished = 0;  // parts that have not ended
    Bytes taken = 0;
    // The first part that fell short: up to where the bytes before it are there, and what became of the rest.
    Bytes reached = 0;
    std::int64_t rest = 0;

    Order(const FileRequest& asked, Bytes part) : request(asked), reached(asked.size) {
        // Threads that write would make the same pages, which may be huge.
        in_line = unfinished = part == 0 || request.write ? 1 : std::max<Bytes>(request.size / part, 1);
    }

    FileRequest take(Bytes part) {
        FileRequest next = request;
        next.address = static_cast<char*>(request.address) + taken;
        next.offset += taken;
        if (request.mapped != nullptr) next.mapped = static_cast<char*>(request.mapped) + taken;
        next.size = --in_line == 0 ? request.size - taken : part;
        taken += next.size;
        return next;
    }

    // True when it was the last one.
    bool end(const FileRequest& part, std::int64_t result) {
        const Bytes begin = part.offset - request.offset;
        const Bytes moved = result > 0 ? static_cast<Bytes>(result) : 0;
        if (moved < part.size && begin + moved < reached) {
            reached = begin + moved;
            rest = std::min<std::int64_t>(result, 0);
        }
        return --unfinished == 0;
    }

    // What no thread has taken never will be. True when nothing else was left.
    bool withdraw() {
        if (taken < reached) {
            reached = taken;
            rest = -ECANCELED;
        }
        unfinished -= std::exchange(in_line, 0);
        return unfinished == 0;
    }

    // As one call would have ended: with what lies before the first gap.
    std::int64_t result() const { return reached > 0 ? static_cast<std::int64_t>(reached) : rest; }
};

class ThreadEngine final : public FileIoEngine {
public:
    ThreadEngine(unsigned depth, unsigned threads, Wake wake, Bytes part)
        : depth_(depth), max_threads_(threads), when_(wake), part_(part) {}
    ~ThreadEngine() override;
    bool end() override;

    std::string_view name() const override { return "threads"; }
    unsigned depth() const override { return depth_; }
    void submit(const FileRequest& request) override;
    void flush() override {}
    void withdraw(std::uint64_t tag) override;
    void make_up_for(unsigned hanging) override;
    void reap(std::vector<FileCompletion>& ended) override;
    bool calls_back() const override { return true; }
    void set_callback(std::function<void()> call) override { callback_ = std::move(call); }

private:
    bool start_thread();
    bool start_threads(std::size_t wanted);
    bool left_to_others() const;
    bool wake_one();
    void sleep(std::unique_lock<std::mutex>& lock);
    void refuse_last();
    void work();
    void look_out(std::unique_lock<std::mutex>& lock);
    void call_back(std::unique_lock<std::mutex>& lock);
    void count_line(std::size_t parts);
    FileRequest take_part(Order& order);

    const unsigned depth_;
    const unsigned max_threads_;
    const Wake when_;
    const Bytes part_;
    std::vector<std::thread> threads_;  // only touched by the user of the engine
    std::function<void()> callback_;    // constant once there are threads

    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    std::condition_variable quiet_;  // told while stopping
    std::chrono::steady_clock::time_point last_begun_;
    std::deque<std::shared_ptr<Order>> waiting_;  // that have parts in line
    std::vector<FileCompletion> ended_;
    std::deque<std::optional<std::chrono::steady_clock::time_point>> begun_;  // of each thread: its part
    unsigned busy_ = 0;
    unsigned asleep_ = 0;
    unsigned woken_ = 0;      // of those asleep: told to wake, and not up yet
    std::size_t coming_ = 0;  // threads that will look for a part: just started, or calling
    unsigned calling_ = 0;    // threads at the callback
    bool stopping_ = false;
    std::atomic<unsigned> hanging_{0};      // threads at parts that hang; set by the user of the engine
    std::atomic<unsigned> looking_out_{0};  // threads that take a part without being woken
    std::atomic<std::size_t> in_line_{0};   // parts of waiting_; read without the lock by those that look out
    std::atomic<bool> any_ended_{false};    // something may be in ended_
};

ThreadEngine::~ThreadEngine() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

bool ThreadEngine::end() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    waiting_.clear();
    count_line(0);
    wake_.notify_all();
    return quiet_.wait_until(lock, last_begun_ + end_limit, [this] { return busy_ + calling_ == 0; });
}

bool ThreadEngine::start_thread() {
    const auto count = [this](std::size_t more) {
        const std::lock_guard lock(mutex_);
        coming_ += more;
    };
    count(1);
    try {
        threads_.emplace_back([this] { work(); });
        return true;
    } catch (const std::system_error&) {  // no more threads allowed
        count(std::size_t{0} - 1);
        return false;
    }
}

// False where there is none at all.
bool ThreadEngine::start_threads(std::size_t wanted) {
    const std::size_t most = max_threads_ + hanging_.load();
    while (threads_.size() < std::min(wanted, most) && start_thread()) {
    }
    return !threads_.empty();
}

// With the lock held: no thread needs to be woken. A thread that is starting counts as busy with a queued
// part. Otherwise requests would start more threads than may run at once, and those would compete for
// processors.
bool ThreadEngine::left_to_others() const {
    const std::size_t line = in_line_.load(std::memory_order_relaxed);
    const std::size_t coming = coming_ + looking_out_ + woken_;
    return when_ == Wake::when_behind && (line - std::min(line, coming)) * working_for_one_in_line <=
                                             busy_ - std::min(busy_, hanging_.load()) + coming;
}

// With the lock. False where nobody sleeps who is not about to wake; else the caller notifies.
bool ThreadEngine::wake_one() {
    if (asleep_ <= woken_) return false;
    ++woken_;
    return true;
}

// Until there is a part, or the end.
void ThreadEngine::sleep(std::unique_lock<std::mutex>& lock) {
    while (waiting_.empty() && !stopping_) {
        ++asleep_;
        wake_.wait(lock);
        --asleep_;
        if (woken_ > 0) --woken_;
    }
}

void ThreadEngine::count_line(std::size_t parts) {
    in_line_.store(parts, std::memory_order_release);
}

void ThreadEngine::submit(const FileRequest& request) {
    auto order = std::make_shared<Order>(request, part_);
    const std::size_t parts = order->in_line;
    std::size_t wanted = 0;
    bool wake = false;
    {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        waiting_.push_back(std::move(order));
        count_line(in_line_.load(std::memory_order_relaxed) + parts);
        if (left_to_others()) return;
        wanted = busy_ + in_line_.load(std::memory_order_relaxed);
        wake = wake_one();
    }
    if (wake) wake_.notify_one();  // who wakes passes that on
    if (!start_threads(wanted)) refuse_last();
}

// There is no thread that could have taken a part of it.
void ThreadEngine::refuse_last() {
    const std::lock_guard lock(mutex_);
    const Order& order = *waiting_.back();
    ended_.push_back({order.request.tag, -ENOMEM});
    count_line(in_line_.load(std::memory_order_relaxed) - order.in_line);
    waiting_.pop_back();
    any_ended_.store(true, std::memory_order_release);
}

void ThreadEngine::withdraw(std::uint64_t tag) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(waiting_, tag, [](const auto& order) { return order->request.tag; });
    if (found == waiting_.end()) return;
    Order& order = **found;
    count_line(in_line_.load(std::memory_order_relaxed) - order.in_line);
    if (order.withdraw()) {
        ended_.push_back({tag, order.result()});
        any_ended_.store(true, std::memory_order_release);
    }
    waiting_.erase(found);
}

// What is in line may have been left to threads that hang.
void ThreadEngine::make_up_for(unsigned hanging) {
    std::size_t wanted = 0;
    {
        const std::lock_guard lock(mutex_);
        const auto since = std::chrono::steady_clock::now() - hangs_after;
        const auto hangs = [since](const auto& begun) { return begun && *begun <= since; };
        hanging_ = hanging == 0 ? 0 : static_cast<unsigned>(std::ranges::count_if(begun_, hangs));
        if (hanging_ == 0 || waiting_.empty() || stopping_) return;
        wanted = threads_.size() + in_line_.load(std::memory_order_relaxed);
    }
    wake_.notify_all();
    start_threads(wanted);
}

// A driver asks some hundred thousand times a second. If it took the lock each time, the threads would find
// it taken, sleep, and wake up late.
void ThreadEngine::reap(std::vector<FileCompletion>& ended) {
    if (!any_ended_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    any_ended_.store(false, std::memory_order_relaxed);
    ended.insert(ended.end(), ended_.begin(), ended_.end());
    ended_.clear();
}

// What has just ended is taken on before the next part: slots come free, and what is behind them is
// submitted.
void ThreadEngine::call_back(std::unique_lock<std::mutex>& lock) {
    if (!callback_ || stopping_) return;
    ++coming_;
    ++calling_;
    lock.unlock();
    callback_();
    lock.lock();
    --calling_;
    --coming_;
    if (stopping_) quiet_.notify_all();
}

// Without the lock until there is a part, or it has been long enough.
void ThreadEngine::look_out(std::unique_lock<std::mutex>& lock) {
    ++looking_out_;
    lock.unlock();
    const auto until = std::chrono::steady_clock::now() + looks_out_for;
    while (in_line_.load(std::memory_order_acquire) == 0 && std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
    lock.lock();
    --looking_out_;
}

// With the lock.
FileRequest ThreadEngine::take_part(Order& order) {
    const FileRequest part = order.take(part_);
    if (order.in_line == 0) waiting_.pop_front();
    count_line(in_line_.load(std::memory_order_relaxed) - 1);
    ++busy_;
    last_begun_ = std::chrono::steady_clock::now();
    return part;
}

void ThreadEngine::work() {
    std::unique_lock lock(mutex_);
    --coming_;
    auto& begun = begun_.emplace_back();
    for (bool first = true;; first = false) {
        if (when_ == Wake::when_behind && !first && waiting_.empty() && !stopping_) look_out(lock);
        sleep(lock);
        if (waiting_.empty()) return;  // stopping, and all done
        const std::shared_ptr<Order> order = waiting_.front();
        const FileRequest part = take_part(*order);
        begun = last_begun_;
        const bool more = part_ > 0 && !waiting_.empty() && !left_to_others() && wake_one();
        lock.unlock();
        if (more) wake_.notify_one();
        const std::int64_t result = carry_out(part);
        lock.lock();
        begun.reset();
        --busy_;
        if (stopping_) quiet_.notify_all();
        if (!order->end(part, result)) continue;
        ended_.push_back({order->request.tag, order->result()});
        any_ended_.store(true, std::memory_order_release);
        call_back(lock);
    }
}

}  // namespace

std::unique_ptr<FileIoEngine> create_thread_engine(unsigned depth, unsigned threads, Wake wake, Bytes part) {
    return std::make_unique<ThreadEngine>(depth, threads, wake, part);
}

}  // namespace sidestep::driver
