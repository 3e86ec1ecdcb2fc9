#include "tests/fake_cuda/stream.hpp"

#include <thread>
#include <utility>

namespace sidestep::fake_cuda {

Stream::Stream(Context* context, Queue queue)
    : context_(context), queue_(std::move(queue)), number_([] {
          static std::atomic<unsigned long long> last{0};
          return ++last;
      }()) {}

std::shared_ptr<Stream> Stream::start(Context* context, Queue queue) {
    std::shared_ptr<Stream> stream(new Stream(context, std::move(queue)));
    std::thread([stream] { stream->run(); }).detach();
    return stream;
}

CUresult Stream::push(Work work, bool for_graphs) {
    std::unique_lock lock(mutex_);
    if (capturing_ && !for_graphs) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (capturing_) {
        captured_.push_back(std::move(work));
        return CUDA_SUCCESS;
    }
    changed_.wait(lock, [this] { return work_.size() < most_entries; });
    work_.push_back(std::move(work));
    changed_.notify_all();
    return CUDA_SUCCESS;
}

bool Stream::idle() {
    std::lock_guard lock(mutex_);
    return work_.empty() && !busy_;
}

void Stream::wait_until_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_.empty() && !busy_; });
}

void Stream::finish() {
    std::lock_guard lock(mutex_);
    finished_ = true;
    changed_.notify_all();
}

bool Stream::capturing() {
    std::lock_guard lock(mutex_);
    return capturing_;
}

void Stream::begin_capture() {
    std::lock_guard lock(mutex_);
    capturing_ = true;
}

std::vector<Work> Stream::end_capture() {
    std::lock_guard lock(mutex_);
    capturing_ = false;
    return std::exchange(captured_, {});
}

void Stream::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return finished_ || !work_.empty(); });
        if (work_.empty()) return;
        {
            const Work work = std::move(work_.front());
            work_.pop_front();
            busy_ = true;
            lock.unlock();
            std::unique_lock<std::mutex> turn;
            if (queue_) turn = std::unique_lock(*queue_);
            work();
        }
        lock.lock();
        busy_ = false;
        changed_.notify_all();
    }
}

}  // namespace sidestep::fake_cuda
