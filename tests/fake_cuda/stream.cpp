#include "tests/fake_cuda/stream.hpp"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

namespace sidestep::fake_cuda {

void Queue::push(Work work) {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
    if (std::exchange(started_, true)) return;
    std::thread([self = shared_from_this()] { self->run(); }).detach();
}

void Queue::finish() {
    std::lock_guard lock(mutex_);
    finished_ = true;
    changed_.notify_all();
}

void Queue::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return finished_ || !work_.empty(); });
        if (work_.empty()) return;
        {
            const Work work = std::move(work_.front());
            work_.pop_front();
            lock.unlock();
            work();
        }
        lock.lock();
    }
}

namespace {

unsigned connections() {
    const char* const set = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int number = set ? std::atoi(set) : 0;
    return number > 0 ? static_cast<unsigned>(number) : Queues::by_default;
}

}  // namespace

// With 32 of them copies to other GPUs have been held up by nobody.
Queues::Queues() : compute_(connections()), peers_(std::max(1u, connections() / 2)) {
    for (auto* const list : {&compute_, &peers_})
        for (auto& queue : *list) queue = std::make_shared<Queue>();
}

Queue* Queues::next_for_compute() {
    if (std::getenv("FAKE_CUDA_ONE_QUEUE") != nullptr) return compute_[0].get();
    return compute_[next_compute_++ % compute_.size()].get();
}

Queue* Queues::next_for_peers() {
    return peers_[next_peer_++ % peers_.size()].get();
}

Stream::Stream(Context* context, Queues* queues)
    : context_(context),
      queues_(queues),
      number_([] {
          static std::atomic<unsigned long long> last{0};
          return ++last;
      }()),
      compute_(queues ? queues->next_for_compute() : own_.get()),
      last_(compute_) {}

std::shared_ptr<Stream> Stream::make(Context* context, Queues* queues) {
    return std::shared_ptr<Stream>(new Stream(context, queues));
}

// The mutex is held.
Queue* Stream::queue_for(Carrier carrier) {
    if (carrier == Carrier::last || !queues_) return last_;
    if (carrier == Carrier::peer && !peer_) peer_ = queues_->next_for_peers();
    return last_ = carrier == Carrier::compute ? compute_ : carrier == Carrier::peer ? peer_ : own_.get();
}

CUresult Stream::push(Work work, bool for_graphs, Carrier carrier) {
    std::unique_lock lock(mutex_);
    if (captured_ && !for_graphs) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (captured_) {
        captured_->work.push_back(std::move(work));
        return CUDA_SUCCESS;
    }
    changed_.wait(lock, [this] { return pushed_ - done_ < max_entries; });
    const std::uint64_t number = ++pushed_;
    queue_for(carrier)->push(
        [self = shared_from_this(), number, work = std::move(work)] { self->carry_out(number, work); });
    return CUDA_SUCCESS;
}

// What the stream put into another queue before comes first, and everything in this one waits for that too.
void Stream::carry_out(std::uint64_t number, const Work& work) {
    {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return done_ + 1 == number; });
    }
    work();
    std::lock_guard lock(mutex_);
    done_ = number;
    changed_.notify_all();
}

bool Stream::idle() {
    std::lock_guard lock(mutex_);
    return done_ == pushed_;
}

void Stream::wait_until_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_ == pushed_; });
}

Graph* Stream::captured() {
    std::lock_guard lock(mutex_);
    return captured_.get();
}

void Stream::begin_capture() {
    static std::atomic<unsigned long long> last{0};
    std::lock_guard lock(mutex_);
    captured_ = std::make_unique<Graph>();
    capture_number_ = ++last;
}

std::unique_ptr<Graph> Stream::end_capture() {
    std::lock_guard lock(mutex_);
    return std::exchange(captured_, nullptr);
}

unsigned long long Stream::capture_number() {
    std::lock_guard lock(mutex_);
    return capture_number_;
}

}  // namespace sidestep::fake_cuda
