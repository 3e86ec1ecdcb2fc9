#include "backends/cuda/gate.hpp"

#include <algorithm>
#include <atomic>
#include <optional>

#include <fmt/format.h>

#include "backends/cuda/allocate.hpp"
#include "base/kept.hpp"
#include "base/log.hpp"
#include "base/try.hpp"

namespace sidestep::backends::cuda {

// A gate is a word that its stream waits on, with an event before the wait and one behind it.
class WordGate : public backend::Gate {
public:
    WordGate(std::shared_ptr<GateWords> words, std::uint32_t* word, CUcontext context,
             driver::CudaEvent before, driver::CudaEvent passed)
        : words_(std::move(words)),
          word_(word),
          context_(context),
          before_(std::move(before)),
          passed_(std::move(passed)) {}

    ~WordGate() override {
        open();
        words_->rest(word_, std::move(passed_), context_);
    }

    Result<bool> ready() override {
        const driver::Cuda& cuda = *words_->cuda_;
        driver::ScopedCudaContext current(cuda, context_);
        CUresult status = cuda.cuEventQuery(before_.get());
        if (status == CUDA_ERROR_NOT_READY) return false;
        SIDESTEP_CHECK(cuda.check(status, "cuEventQuery"));
        return true;
    }

    // Release: the bytes of the staged copy are visible before the word is.
    void open() override { std::atomic_ref(*word_).store(1, std::memory_order_release); }

private:
    std::shared_ptr<GateWords> words_;
    std::uint32_t* word_;
    CUcontext context_;
    driver::CudaEvent before_;
    driver::CudaEvent passed_;
};

Result<CallersStream> callers_stream(const driver::Cuda& cuda, void* stream, CUcontext fallback) {
    CallersStream found{static_cast<CUstream>(stream), nullptr};
    const bool is_default = stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    if (is_default) {
        if (cuda.cuCtxGetCurrent(&found.context) != CUDA_SUCCESS || !found.context) found.context = fallback;
        if (!found.context)
            return Error{ErrorCode::invalid_argument, "a default stream belongs to no GPU here", "stream",
                         "make a context current on this thread, or give a stream of your own"};
    } else {
        CUresult status = cuda.cuStreamGetCtx(found.stream, &found.context);
        SIDESTEP_CHECK(cuda.check(status, "cuStreamGetCtx"));
    }
    driver::ScopedCudaContext current(cuda, found.context);
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult status = cuda.cuStreamIsCapturing(found.stream, &capture);
    SIDESTEP_CHECK(cuda.check(status, "cuStreamIsCapturing"));
    found.capturing = capture != CU_STREAM_CAPTURE_STATUS_NONE;
    return found;
}

Result<std::unique_ptr<backend::Gate>> GateWords::put(Gpus& gpus, const CallersStream& stream) {
    if (stream.capturing)
        return Error{ErrorCode::unsupported,
                     "the stream is being captured into a graph, and this copy is not a single hop on a "
                     "stream, or is verified",
                     "stream", "copy outside of the capture, or between GPUs and pinned host memory"};
    SIDESTEP_TRY(std::uint32_t * word, take(gpus));
    driver::ScopedCudaContext current(*cuda_, stream.context);
    auto before = driver::CudaEvent::create(cuda_);
    auto passed = driver::CudaEvent::create(cuda_);
    if (!before || !passed) {
        std::lock_guard lock(mutex_);
        free_.push_back(word);
        Error error = before ? passed.error() : before.error();
        error.where = "gate on a stream";
        return error;
    }
    const char* call = "cuEventRecord";
    CUresult status = cuda_->cuEventRecord(before->get(), stream.stream);
    if (status == CUDA_SUCCESS) {
        call = "cuStreamWaitValue32";
        status = cuda_->cuStreamWaitValue32(stream.stream, reinterpret_cast<CUdeviceptr>(word), 1,
                                            CU_STREAM_WAIT_VALUE_GEQ);
    }
    if (status != CUDA_SUCCESS) {
        std::lock_guard lock(mutex_);
        free_.push_back(word);
        return cuda_->error(status, call, "gate on a stream");
    }
    status = cuda_->cuEventRecord(passed->get(), stream.stream);
    if (status != CUDA_SUCCESS) {
        // The stream waits on the word, and nothing will tell when it has passed: the word is spent.
        std::atomic_ref(*word).store(1, std::memory_order_release);
        return cuda_->error(status, "cuEventRecord", "gate on a stream");
    }
    auto gate = std::make_unique<WordGate>(shared_from_this(), word, stream.context, std::move(*before),
                                           std::move(*passed));
    return std::unique_ptr<backend::Gate>(std::move(gate));
}

Result<std::uint32_t*> GateWords::take(Gpus& gpus) {
    std::lock_guard lock(mutex_);
    if (!page_) {
        SIDESTEP_TRY(page_, allocate_pinned(gpus, -1, max_words * bytes_a_word));
        free_.reserve(max_words);
        resting_.reserve(max_words);
        auto* bytes = static_cast<std::byte*>(page_.address());
        for (std::size_t i = max_words; i-- > 0;)
            free_.push_back(reinterpret_cast<std::uint32_t*>(bytes + i * bytes_a_word));
    }
    if (free_.empty()) collect();
    if (free_.empty())
        return Error{ErrorCode::unsupported, fmt::format("{} gates hold streams already", max_words), "gate",
                     "let some of the staged copies end"};
    std::uint32_t* word = free_.back();
    free_.pop_back();
    std::atomic_ref(*word).store(0, std::memory_order_relaxed);
    return word;
}

void GateWords::rest(std::uint32_t* word, driver::CudaEvent passed, CUcontext context) noexcept {
    std::lock_guard lock(mutex_);
    collect();
    resting_.push_back({word, std::move(passed), context});
}

// Takes back the words that no stream waits on any more. The lock is held.
void GateWords::collect() noexcept {
    const auto passed = [this](const Resting& resting) {
        driver::ScopedCudaContext current(*cuda_, resting.context);
        return cuda_->cuEventQuery(resting.passed.get()) == CUDA_SUCCESS;
    };
    std::erase_if(resting_, [&](const Resting& resting) {
        if (!passed(resting)) return false;
        free_.push_back(resting.word);
        return true;
    });
}

GateWords::~GateWords() {
    collect();
    if (!page_ || free_.size() == max_words) return;
    base::log(base::LogLevel::warn, "a stream still waits at an open gate: its pinned words are not freed");
    base::keep(std::make_shared<Allocation>(std::move(page_)));
}

}  // namespace sidestep::backends::cuda
