// What is enqueued on the streams of one GPU, and has not ended yet.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include <sidestep/allocation.hpp>
#include "backend/flight.hpp"
#include "driver/cuda_handles.hpp"

namespace sidestep::backends::cuda {

// What is told of a piece once what was enqueued of it has ended.
struct Failure {
    Error error;
    std::optional<driver::CudaStream> stream = {};  // its own, if it has one that no event marks
};

// What tells that a piece has ended: all that is on its stream, an event behind it, or a word that the GPU writes behind it.
enum class Told : char { by_stream, by_event, by_word };

// A piece, and the event that ends it. Belongs to an InFlight, which hands it out again and again.
struct Enqueued {
    CUevent event = nullptr;
    CUstream stream = nullptr;
    std::atomic<Told> told{Told::by_stream};
    std::uint64_t* word = nullptr;  // becomes `value`; null: it has none yet
    std::uint64_t value = 0;
    unsigned looks = 0;  // at the word
    backend::Flight* flight = nullptr;
    std::unique_ptr<Failure> failure = nullptr;
    bool doubted = false;      // the last question after it failed
    Enqueued* next = nullptr;  // of those that are free, or behind it on its stream
};

// When the event that ends a piece is recorded, which takes 0.3 us (docs/lab-book.md, "Several lanes, other processes, many
// small copies"). Later: when something goes behind it that may take long, or that the same thread enqueues, or when a look
// finds it in flight. So nothing may follow it on its stream but small pieces of an InFlight. Awaited: as later, but while nothing
// else is in flight a word ends it: its call takes 1.8 us, and the end is seen 2 us sooner all in all ("Between machines, over TCP").
enum class Mark { now, later, awaited };

// Safe to use from several threads.
class InFlight {
public:
    // `gpu`: its number, for errors.
    InFlight(std::shared_ptr<const driver::CudaContext> context, int gpu);
    ~InFlight();

    // One to be filled in for what is about to be enqueued on that stream; the GPU's context is current, here and in mark().
    // Fails when too many are in flight.
    Result<Enqueued*> take(CUstream stream, Mark mark);
    // One that the calling thread took and did not add.
    void give_back(Enqueued* work);
    // Of one that is enqueued.
    CUresult mark(Enqueued& work, Mark mark);
    // From now on look() asks after it, once what this thread added before on that stream has ended.
    void add(Enqueued* work);

    // Ends what is over: mostly of what the calling thread added, so that threads that wait for their own copies neither ask
    // the driver the same nor wait for each other. Answers whether anything is left.
    bool look();

private:
    static constexpr std::size_t max_in_flight = 65536;
    static constexpr std::size_t max_words = 256;
    static constexpr std::size_t bytes_a_word = 64;
    // Afterwards the driver is asked each time: it may know why the word does not come.
    static constexpr unsigned looks_at_word = 64;
    // Threads have shares by turns. Of 8 that read 4 KiB each, with one share, two fifths of the time went into its mutex.
    static constexpr std::size_t shares = 16;
    // Of so many looks of a thread whose own pieces are in flight, one is at all shares.
    static constexpr unsigned looks_at_own = 16;
    // Streams of callers come and go: beyond so many the empty queues of a share are dropped.
    static constexpr std::size_t max_idle_queues = 64;
    // In the order in which they were enqueued, so that only the first is asked after: half a microsecond each.
    struct Queue {
        Enqueued* first = nullptr;
        Enqueued* last = nullptr;
    };
    struct alignas(64) Share {
        std::mutex looking;  // held while the driver is asked; before the other
        std::mutex mutex;    // guards what follows; the first of a queue is taken off by who looks alone
        std::deque<Enqueued> all;
        Enqueued* free = nullptr;
        std::unordered_map<CUstream, Queue> queues;
        std::atomic<std::size_t> count{0};  // of those in queues
        // At it, or at all. Each GPU has its own count: a thread that looks at several in turn would always come to the same.
        std::atomic<unsigned> looks{0};
    };
    struct Ended {
        backend::Flight* flight;
        Result<void> result;
    };

    Share& own();
    bool idle() const;
    CUresult record(Enqueued& work) const;
    void write_word(Enqueued& work);
    void mark_last(Share& share, CUstream stream) const;
    bool look_at(Share& share);
    void look_at(Share& share, Queue& queue, std::vector<Ended>& ended) const;
    std::optional<Result<void>> outcome(Share& share, Enqueued& work) const;

    const std::shared_ptr<const driver::CudaContext> context_;
    const int gpu_;
    std::atomic<std::size_t> made_{0};
    // Pinned memory for as many words, a cache line each; an element keeps its word. None where there is no such memory.
    Allocation words_;
    std::atomic<std::size_t> words_given_;
    std::array<Share, shares> shares_;
};

}  // namespace sidestep::backends::cuda
