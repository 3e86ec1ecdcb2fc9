#include "driver/file_threads.hpp"

#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace sidestep::driver {
namespace {

class ThreadEngine final : public FileIoEngine {
public:
    ThreadEngine(unsigned depth, unsigned threads) : depth_(depth), most_threads_(threads) {}
    ~ThreadEngine() override;

    std::string_view name() const override { return "threads"; }
    unsigned depth() const override { return depth_; }
    void submit(const FileRequest& request) override;
    void flush() override {}
    void reap(std::vector<FileCompletion>& ended) override;

private:
    bool start_thread();
    void work();

    const unsigned depth_;
    const unsigned most_threads_;
    std::vector<std::thread> threads_;  // only touched by the user of the engine

    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    std::deque<FileRequest> waiting_;
    std::vector<FileCompletion> ended_;
    unsigned busy_ = 0;
    bool stopping_ = false;
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
        crowded = busy_ + waiting_.size() > threads_.size();
    }
    wake_.notify_one();
    if (!crowded || threads_.size() >= most_threads_ || start_thread() || !threads_.empty()) return;
    const std::lock_guard lock(mutex_);
    waiting_.pop_back();
    ended_.push_back({request.tag, -ENOMEM});
}

void ThreadEngine::reap(std::vector<FileCompletion>& ended) {
    const std::lock_guard lock(mutex_);
    ended.insert(ended.end(), ended_.begin(), ended_.end());
    ended_.clear();
}

void ThreadEngine::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
        if (waiting_.empty()) return;  // stopping, and all done
        const FileRequest request = waiting_.front();
        waiting_.pop_front();
        ++busy_;
        lock.unlock();
        const auto offset = static_cast<off_t>(request.offset);
        const auto moved = request.write ? ::pwrite(request.fd, request.address, request.size, offset)
                                         : ::pread(request.fd, request.address, request.size, offset);
        const FileCompletion completion{request.tag, moved < 0 ? -static_cast<std::int64_t>(errno) : moved};
        lock.lock();
        --busy_;
        ended_.push_back(completion);
    }
}

}  // namespace

std::unique_ptr<FileIoEngine> create_thread_engine(unsigned depth, unsigned threads) {
    return std::make_unique<ThreadEngine>(depth, threads);
}

}  // namespace sidestep::driver
