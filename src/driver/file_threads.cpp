#include "driver/file_threads.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "driver/target_map.hpp"

namespace sidestep::driver {
namespace {

// A thread that sleeps is woken late (on a virtual machine's idle processor after tens of microseconds), and waking it costs the
// caller ten; one that works takes its next request at once. So with Wake::when_behind one request in line for so many
// threads at work is left to them, and who has nothing to do looks out for a while before it sleeps.
constexpr std::size_t working_for_one_in_line = 4;
constexpr auto looks_out_for = std::chrono::microseconds(300);

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

class ThreadEngine final : public FileIoEngine {
public:
    ThreadEngine(unsigned depth, unsigned threads, Wake wake) : depth_(depth), most_threads_(threads), when_(wake) {}
    ~ThreadEngine() override;

    std::string_view name() const override { return "threads"; }
    unsigned depth() const override { return depth_; }
    void submit(const FileRequest& request) override;
    void flush() override {}
    void reap(std::vector<FileCompletion>& ended) override;

private:
    bool start_thread();
    void work();
    void look_out(std::unique_lock<std::mutex>& lock);

    const unsigned depth_;
    const unsigned most_threads_;
    const Wake when_;
    std::vector<std::thread> threads_;  // only touched by the user of the engine

    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    std::deque<FileRequest> waiting_;
    std::vector<FileCompletion> ended_;
    unsigned busy_ = 0;
    bool stopping_ = false;
    std::atomic<unsigned> looking_out_{0};  // threads that take a request without being woken
    std::atomic<std::size_t> in_line_{0};   // the size of waiting_, for those that look out
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

bool ThreadEngine::start_thread() {
    try {
        threads_.emplace_back([this] { work(); });
        return true;
    } catch (const std::system_error&) {  // no more threads allowed
        return false;
    }
}

void ThreadEngine::submit(const FileRequest& request) {
    bool crowded = false;
    {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(request);
        in_line_.store(waiting_.size(), std::memory_order_release);
        if (when_ == Wake::when_behind &&
            (waiting_.size() * working_for_one_in_line <= busy_ || waiting_.size() <= looking_out_))
            return;
        crowded = busy_ + waiting_.size() > threads_.size();
    }
    wake_.notify_one();
    if (!crowded || threads_.size() >= most_threads_ || start_thread() || !threads_.empty()) return;
    const std::lock_guard lock(mutex_);
    waiting_.pop_back();
    in_line_.store(waiting_.size(), std::memory_order_release);
    ended_.push_back({request.tag, -ENOMEM});
    any_ended_.store(true, std::memory_order_release);
}

// Whoever drives asks some hundred thousand times a second: with the lock each time, the threads would find it taken, sleep,
// and be woken late.
void ThreadEngine::reap(std::vector<FileCompletion>& ended) {
    if (!any_ended_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    any_ended_.store(false, std::memory_order_relaxed);
    ended.insert(ended.end(), ended_.begin(), ended_.end());
    ended_.clear();
}

// Without the lock until there is a request, or it has been long enough.
void ThreadEngine::look_out(std::unique_lock<std::mutex>& lock) {
    ++looking_out_;
    lock.unlock();
    const auto until = std::chrono::steady_clock::now() + looks_out_for;
    while (in_line_.load(std::memory_order_acquire) == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    lock.lock();
    --looking_out_;
}

void ThreadEngine::work() {
    std::unique_lock lock(mutex_);
    for (bool first = true;; first = false) {
        if (when_ == Wake::when_behind && !first && waiting_.empty() && !stopping_) look_out(lock);
        wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
        if (waiting_.empty()) return;  // stopping, and all done
        const FileRequest request = waiting_.front();
        waiting_.pop_front();
        in_line_.store(waiting_.size(), std::memory_order_release);
        ++busy_;
        lock.unlock();
        const FileCompletion completion{request.tag, carry_out(request)};
        lock.lock();
        --busy_;
        ended_.push_back(completion);
        any_ended_.store(true, std::memory_order_release);
    }
}

}  // namespace

std::unique_ptr<FileIoEngine> create_thread_engine(unsigned depth, unsigned threads, Wake wake) {
    return std::make_unique<ThreadEngine>(depth, threads, wake);
}

}  // namespace sidestep::driver
