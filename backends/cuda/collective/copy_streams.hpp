// What carries bytes for tasks of Shape::copies: the streams of the GPU that its ranks share for that. What ends this
// rank's copies there are marks of its own.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/copy_exchange.hpp"
#include "backends/cuda/collective/seats.hpp"

namespace sidestep::backends::cuda {

// Where memory of every rank lies in this process. Any thread.
class MappedSlots {
public:
    explicit MappedSlots(unsigned ranks) : bases_(std::size_t{ranks} * backend::most_slots) {}
    void set(unsigned rank, unsigned slot, void* base) {
        at(rank, slot).store(static_cast<char*>(base), std::memory_order_release);
    }
    char* base(unsigned rank, unsigned slot) { return at(rank, slot).load(std::memory_order_acquire); }

private:
    std::atomic<char*>& at(unsigned rank, unsigned slot) {
        return bases_[std::size_t{rank} * backend::most_slots + slot];
    }
    std::vector<std::atomic<char*>> bases_;
};

// A rank among others.
struct CopyPost {
    unsigned rank = 0;
    unsigned ranks = 1;
    backend::CopyRow* rows = nullptr;  // of all ranks, in memory of the host that they share
    MappedSlots* slots = nullptr;
    std::function<backend::Token(const void*)> where;  // Seat::ask()
};

// By one thread, in the GPU's context.
class CopyStreams final : public backend::CopyEngine {
public:
    static Result<std::unique_ptr<CopyStreams>> create(Seats& seats, Gpu& gpu, const CopyPost& post);
    ~CopyStreams() override;

    Result<void> copy(unsigned lane, char* to, const char* from, std::uint64_t bytes) override;
    Result<std::uint64_t> mark(unsigned lane) override;
    std::uint64_t ended(unsigned lane) override;
    char* base(unsigned rank, unsigned slot) override { return post_.slots->base(rank, slot); }
    backend::CopyRow& row(unsigned rank) override { return post_.rows[rank]; }

    // No copy is to come: from then on quiet() says whether all have ended.
    void close();
    bool quiet();
    // "stream 0: 3 of 4 marks", of those where some are missing.
    std::string missing();

private:
    CopyStreams(Seats& seats, Gpu& gpu, const CopyPost& post) : seats_(seats), gpu_(gpu), post_(post) {}
    Result<void> set_up();
    const driver::Cuda& cuda() const { return gpu_.context()->cuda(); }
    static unsigned stream_of(unsigned lane) { return lane % UrgentStreams::each; }
    Result<std::uint64_t> mark_stream(unsigned index);

    Seats& seats_;
    Gpu& gpu_;
    const CopyPost post_;
    std::shared_ptr<const UrgentStreams::List> streams_;
    std::uint64_t* ended_ = nullptr;  // pinned; written by the streams, each behind this rank's copies
    CUdeviceptr ended_on_gpu_ = 0;
    std::array<std::uint64_t, UrgentStreams::each> marks_{};
};

}  // namespace sidestep::backends::cuda
