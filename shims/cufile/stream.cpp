#include "shims/cufile/stream.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>

#include <fmt/format.h>

#include "shims/cufile/driver.hpp"
#include "shims/cufile/task_threads.hpp"

namespace sidestep::cufile {
namespace {

constexpr std::chrono::seconds longest_wait{60};
constexpr unsigned stream_flags = CU_FILE_STREAM_FIXED_BUF_OFFSET | CU_FILE_STREAM_FIXED_FILE_OFFSET |
                                  CU_FILE_STREAM_FIXED_FILE_SIZE | CU_FILE_STREAM_PAGE_ALIGNED_INPUTS;
// Of cuda.h.
constexpr unsigned until_reached = 0;  // CU_STREAM_WAIT_VALUE_GEQ
constexpr int capture_unsupported = 900;

// Not those of batches: what a stream waits for is not to stand behind 128 entries.
TaskThreads& stream_threads() {
    static auto& one = *new TaskThreads(TaskThreads::as_many_as_suit());
    return one;
}

ssize_t carry_out_now(const StreamRequest& request) noexcept {
    if (!Driver::get().is_open()) return -static_cast<ssize_t>(CU_FILE_DRIVER_CLOSING);
    return result_of(run({request.handle, request.base, *request.size, *request.file_offset,
                          *request.base_offset, request.kind}));
}

// One operation on a stream: the stream calls reached(), then waits for the word. It deletes itself.
class Operation final : public Task {
public:
    Operation(const StreamRequest& request, StreamWord& word) : request_(request), word_(word) {}

    // All of it. What cannot be put there entirely is not carried out.
    //
    // A stream that waits holds up the queue of its GPU that it used last, and with it other streams, the engine's too, which
    // then never end what this one waits for. Copies to the host have queues of their own, so one goes ahead.
    Refusal put_on(CUstream stream) {
        const StreamDriver& driver = StreamDriver::get();
        const std::lock_guard guard(word_.enqueuing);
        number_ = ++word_.last;
        const auto beside = reinterpret_cast<std::uintptr_t>(word_.word + 2);
        Refusal refused =
            refusal_of_cuda(driver.copy(beside, word_.of_gpu, 8, stream), "cuMemcpyAsync of 8 bytes");
        if (!refused)
            refused = refusal_of_cuda(
                driver.call_host(
                    stream, [](void* self) { static_cast<Operation*>(self)->meet(true); }, this),
                "cuLaunchHostFunc");
        if (refused) {
            let_go();
            return refused;
        }
        const auto address = reinterpret_cast<std::uintptr_t>(word_.word);
        const int result = driver.wait_for_word(stream, address, number_, until_reached);
        meet(result == 0);
        return refusal_of_cuda(result, "cuStreamWaitValue32");
    }

    void carry_out() noexcept override {
        *request_.result = carry_out_now(request_);
        // Release: the bytes and the result are visible before the word is.
        std::atomic_ref(*word_.word).store(number_, std::memory_order_release);
        let_go();
    }

private:
    // By the stream, which has come to it, and by the caller, who knows whether it will wait: the later one goes on. The
    // stream does so on a thread of CUDA's, where nothing of CUDA may be called.
    void meet(bool good) noexcept {
        if (!good) wanted_.store(false, std::memory_order_relaxed);
        if (met_.exchange(true, std::memory_order_acq_rel) == false) return;
        if (wanted_.load(std::memory_order_relaxed))
            stream_threads().run(*this);
        else
            let_go();
    }

    void let_go() noexcept {
        StreamWord& word = word_;
        delete this;
        Streams::get().give_back(word);
    }

    const StreamRequest request_;
    StreamWord& word_;
    std::uint32_t number_ = 0;
    std::atomic<bool> met_{false};
    std::atomic<bool> wanted_{true};
};

Refusal without_driver() {
    return refusal(CU_FILE_ASYNC_NOT_SUPPORTED,
                   "streams are CUDA's, whose driver is not here: give a null stream");
}

Refusal check_capture(CUstream stream) {
    int status = 0;
    if (auto refused = refusal_of_cuda(StreamDriver::get().capturing(stream, &status), "cuStreamIsCapturing"))
        return refused;
    if (status == 0) return {};
    return {CU_FILE_ASYNC_NOT_SUPPORTED, 0, capture_unsupported,
            "the stream is being captured into a graph, which reads and writes of files cannot be part of"};
}

// In the order of the default stream, where there is one.
Refusal run_at_once(const StreamRequest& request) {
    const StreamDriver& driver = StreamDriver::get();
    if (driver.usable) {
        const StreamContext context(nullptr);
        if (!context.refused())
            if (auto refused = refusal_of_cuda(driver.synchronize(nullptr), "cuStreamSynchronize"))
                return refused;
    }
    *request.result = carry_out_now(request);
    return {};
}

}  // namespace

Streams& Streams::get() {
    static auto& one = *new Streams;
    return one;
}

Refusal Streams::add(CUstream stream, unsigned flags) {
    if ((flags & ~stream_flags) != 0)
        return refusal(CU_FILE_INVALID_VALUE, fmt::format("there are no flags {:#x}", flags & ~stream_flags));
    const std::lock_guard guard(mutex_);
    // The default stream may be registered any number of times.
    if (stream != nullptr && !registered_.insert(stream).second)
        return refusal(CU_FILE_INVALID_VALUE, "the stream is registered already");
    return {};
}

Refusal Streams::remove(CUstream stream) {
    const std::lock_guard guard(mutex_);
    if (stream != nullptr && registered_.erase(stream) == 0)
        return refusal(CU_FILE_INVALID_VALUE, "the stream is not registered");
    return {};
}

void Streams::clear() {
    const std::lock_guard guard(mutex_);
    registered_.clear();
}

Refusal Streams::make_words() {
    auto made =
        Driver::get().context()->allocate(Place::host(), most_words * bytes_a_word, MemoryKind::pinned);
    if (!made) return refusal_of(made.error());
    memory_ = std::move(*made);
    auto* at = static_cast<std::byte*>(memory_->address());
    for (StreamWord& word : words_) {
        word.word = reinterpret_cast<std::uint32_t*>(at);
        std::atomic_ref(*word.word).store(0, std::memory_order_relaxed);
        at += bytes_a_word;
    }
    return {};
}

Refusal Streams::find_bytes(const StreamKey& stream, unsigned long long& address) {
    const auto known = of_gpus_.find(stream.context);
    if (known != of_gpus_.end()) {
        address = known->second;
        return {};
    }
    if (auto refused = refusal_of_cuda(StreamDriver::get().allocate(&address, 8), "cuMemAlloc of 8 bytes"))
        return refused;
    of_gpus_.emplace(stream.context, address);
    return {};
}

// Its own, else one that no stream has.
StreamWord* Streams::find(const StreamKey& stream) {
    StreamWord* unused = nullptr;
    for (StreamWord& word : words_) {
        if (word.in_flight > 0 && word.stream == stream) return &word;
        if (word.in_flight == 0 && unused == nullptr) unused = &word;
    }
    return unused;
}

Refusal Streams::lease(const StreamKey& stream, StreamWord*& leased) {
    std::unique_lock lock(mutex_);
    if (!memory_)
        if (auto refused = make_words()) return refused;
    unsigned long long of_gpu = 0;
    if (auto refused = find_bytes(stream, of_gpu)) return refused;
    StreamWord* word = nullptr;
    const bool there = ended_one_.wait_for(lock, longest_wait, [&] {
        word = find(stream);
        return word != nullptr && word->in_flight < most_in_flight;
    });
    if (!there)
        return refusal(CU_FILE_IO_ERROR,
                       fmt::format("as many reads and writes as may be are in flight ({} on a stream, {} "
                                   "streams), and none ended within a minute",
                                   most_in_flight, most_words));
    word->stream = stream;
    word->of_gpu = of_gpu;
    ++word->in_flight;
    leased = word;
    return {};
}

void Streams::give_back(StreamWord& word) noexcept {
    {
        const std::lock_guard guard(mutex_);
        --word.in_flight;
    }
    ended_one_.notify_all();
}

Refusal enqueue(const StreamRequest& request, CUstream stream) {
    if (request.handle == nullptr || request.base == nullptr || request.size == nullptr ||
        request.file_offset == nullptr || request.base_offset == nullptr || request.result == nullptr)
        return refusal(CU_FILE_INVALID_VALUE, "the handle or an address is null");
    if (auto refused = Driver::get().ensure_open()) return refused;
    if (!Files::get().find(request.handle))
        return refusal(CU_FILE_HANDLE_NOT_REGISTERED,
                       fmt::format("{} is no handle, or was given back", request.handle));
    if (stream == nullptr) return run_at_once(request);
    if (!StreamDriver::get().usable) return without_driver();
    const StreamContext context(stream);
    if (context.refused()) return context.refused();
    if (auto refused = check_capture(stream)) return refused;
    if (!stream_threads().ready()) return {CU_FILE_NOMEM_ERROR, EAGAIN, 0, "no thread can be started"};
    StreamWord* word = nullptr;
    if (auto refused = Streams::get().lease(context.key(), word)) return refused;
    auto* const operation = new (std::nothrow) Operation(request, *word);
    if (operation == nullptr) {
        Streams::get().give_back(*word);
        return {CU_FILE_NOMEM_ERROR, ENOMEM, 0, {}};
    }
    return operation->put_on(stream);
}

}  // namespace sidestep::cufile
