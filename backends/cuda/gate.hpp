// Gates on callers' streams: a stream waits for a word of pinned memory that the host sets.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <sidestep/allocation.hpp>
#include "backend/backend.hpp"
#include "backends/cuda/gpus.hpp"

namespace sidestep::backends::cuda {

// A stream as a caller names it.
struct CallersStream {
    CUstream stream = nullptr;
    CUcontext context = nullptr;
    bool capturing = false;  // into a graph: nothing that is enqueued can be polled
};

// Finds the context of a caller's stream. The default streams (null, CU_STREAM_LEGACY and
// CU_STREAM_PER_THREAD) belong to the context that is current on the calling thread, or to `fallback` if
// there is none.
Result<CallersStream> callers_stream(const driver::Cuda& cuda, void* stream, CUcontext fallback);

// The words that gates wait on. A word that a stream waits on must stay until that wait is over, which may
// be long after its gate was opened and destroyed: words rest until the event behind the wait has come.
// Kept alive by every gate. Safe to use from several threads.
class GateWords : public std::enable_shared_from_this<GateWords> {
public:
    explicit GateWords(std::shared_ptr<const driver::Cuda> cuda) : cuda_(std::move(cuda)) {}
    // Leaks the pinned words if a stream still waits on one of them.
    ~GateWords();

    // Enqueues a gate on `stream`; ErrorCode::unsupported where it is being captured, since a graph is
    // launched when nobody is there to open the gate. `gpus` is used to allocate the words, in the first call
    // only.
    Result<std::unique_ptr<backend::Gate>> put(Gpus& gpus, const CallersStream& stream);

private:
    friend class WordGate;
    struct Resting {
        std::uint32_t* word;
        driver::CudaEvent passed;
        CUcontext context;
    };
    // Gates that may wait or rest at a time. A stream's queue in the driver holds about 1024 entries, and the
    // call that would add one more blocks until the first ends: behind a closed gate, for ever (seen on an
    // H200, driver 580.159.04). Each gate takes two or three entries.
    static constexpr std::size_t max_words = 128;
    static constexpr std::size_t bytes_a_word = 64;  // a cache line each

    Result<std::uint32_t*> take(Gpus& gpus);
    void rest(std::uint32_t* word, driver::CudaEvent passed, CUcontext context) noexcept;
    void collect() noexcept;

    std::shared_ptr<const driver::Cuda> cuda_;
    std::mutex mutex_;
    Allocation page_;
    std::vector<std::uint32_t*> free_;
    std::vector<Resting> resting_;  // never grows beyond what take() reserved
};

}  // namespace sidestep::backends::cuda
