// The streams that carry bytes for tasks of Shape::copies. All ranks on a GPU share them, and each rank marks the end of its
// own copies.
//
// A stream is used after it has answered: the rank enqueues a mark, the mark comes through the hardware queue, and the copies
// follow at once. If no mark comes back, another stream blocks that queue, perhaps the very one that waits for these copies.
// Then the next stream is tried.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/cuda/collective/seats.hpp"
#include "protocol/copy_exchange.hpp"
#include "protocol/slot_table.hpp"

namespace sidestep::backends::cuda {

// A rank among others.
struct CopyPost {
    unsigned rank = 0;
    unsigned ranks = 1;
    protocol::CopyRow* rows = nullptr;  // of all ranks, in memory of the host that they share
    const protocol::SlotTable* slots = nullptr;
    std::function<protocol::Token(const void*, Bytes)> where;  // Seat::ask()
};

// By one thread, in the GPU's context.
class CopyStreams final : public protocol::CopyEngine {
public:
    // All arenas are mapped.
    static Result<std::unique_ptr<CopyStreams>> create(Seats& seats, Gpu& gpu, const CopyPost& post);
    ~CopyStreams() override;
    // ErrorCode::unsupported where streams of the GPU cannot write and wait for words.
    static Result<void> check(const Gpu& gpu);
    // All arenas are mapped. To be called before any stream of the process waits for a rank of the group:
    // streams copy for the first time, as SharedStreams::prime() says, and its words of those for other GPUs;
    // null where there are none.
    static Result<const std::uint64_t*> prime(Seats& seats, const Gpu& gpu, const CopyPost& post);

    // A task begins, whose stream has been told to wait: what was answered before counts no longer.
    void begin();
    // By any thread, while it tells a stream of this GPU to wait: no copies within the GPU are enqueued
    // meanwhile, and what was answered before counts no longer.
    std::unique_lock<std::mutex> enqueue_waits();
    // To be called when the copies that were begun together are marked.
    void end_step() {
        if (calls_.owns_lock()) calls_.unlock();
    }

    bool near(unsigned rank) override { return near_[rank]; }
    Result<bool> ready(unsigned lane) override;
    Result<void> copy(unsigned lane, char* to, const char* from, std::uint64_t bytes) override;
    Result<std::uint64_t> mark(unsigned lane) override;
    bool ended(unsigned lane, std::uint64_t mark) override;
    char* find(unsigned rank, unsigned slot, std::uint64_t offset, std::uint64_t bytes) override {
        return post_.slots->find(rank, slot, offset, bytes);
    }
    protocol::CopyRow& row(unsigned rank) override { return post_.rows[rank]; }

    // No copy is to come: from then on quiet() says whether all have ended.
    void close();
    bool quiet();
    // "stream 0: 3 of 4 marks", of those where some are missing.
    std::string missing();
    // Whether a lane has been waiting for an answer of any stream for longer than streams take.
    bool held_up() const;

private:
    using Clock = std::chrono::steady_clock;
    // Numbers of streams: those for other GPUs first. Each has a word of a HostPages entry.
    static constexpr unsigned usual_away = SharedStreams::how_many[0];
    static constexpr unsigned all_away = SharedStreams::all_away;
    static constexpr unsigned all = all_away + SharedStreams::how_many[2];
    static_assert(all <= 16);
    // What this rank has to do with a stream.
    struct Use {
        std::uint64_t marks = 0;
        std::uint64_t behind_copies = 0;  // the mark that the last copy came before
        bool unmarked = false;            // copies have come since
        std::uint64_t question = 0;       // a mark
        std::uint64_t waits = 0;          // how many there were when it was asked
        Clock::time_point asked, answered;
    };

    CopyStreams(Seats& seats, Gpu& gpu, const CopyPost& post)
        : seats_(seats),
          gpu_(gpu),
          post_(post),
          waits_(seats.shared_streams.waits(gpu)),
          calls_(waits_.calls, std::defer_lock) {}
    Result<void> set_up();
    const driver::Cuda& cuda() const { return gpu_.context()->cuda(); }
    Result<CUstream> stream(unsigned number);
    Result<std::uint64_t> mark_stream(unsigned number);
    Result<void> ask(unsigned number);
    bool answers(unsigned number);
    void keep_waits_out();
    std::uint64_t ended_of(unsigned number) const {
        return std::atomic_ref(ended_[number]).load(std::memory_order_acquire);
    }

    Seats& seats_;
    Gpu& gpu_;
    const CopyPost post_;
    SharedStreams::Waits& waits_;
    std::unique_lock<std::mutex> calls_;  // of waits_
    std::array<bool, protocol::max_ranks> near_{};
    const std::uint64_t* primed_ = nullptr;  // SharedStreams::prime(); null where all ranks have this GPU
    std::array<std::shared_ptr<const SharedStreams::List>, 3> streams_;  // by kind
    std::array<Use, all> uses_;
    struct Lane {
        unsigned stream = 0;              // the one it uses now
        Clock::time_point waits_since{};  // none has answered; the epoch: one has, or nobody asks
    };
    std::array<Lane, protocol::CopyEngine::lanes> lanes_{};
    std::uint64_t* ended_ = nullptr;  // pinned; written by the streams, each behind this rank's copies
    CUdeviceptr ended_on_gpu_ = 0;
};

}  // namespace sidestep::backends::cuda
