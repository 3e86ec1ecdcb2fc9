// One rank on one GPU: its arena, its control block, and the order of its tasks.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <optional>

#include "backends/cuda/collective/copies.hpp"
#include "backends/cuda/collective/task_order.hpp"

namespace sidestep::backends::cuda {

class CollectiveSeat : public backend::Seat {
public:
    static Result<std::unique_ptr<CollectiveSeat>> create(Seats& seats, Gpu& gpu,
                                                          std::shared_ptr<const CollectiveKernels> kernels,
                                                          const backend::SeatRequest& request);
    // Keeps the memory, for the rest of the process, where tasks do not end within some seconds of the abort:
    // a fault of the GPU would be worse. Where the program has destroyed the GPU's context, it took all
    // along.
    ~CollectiveSeat() override;

    const Buffer& arena() const override { return held_->arena.buffer(); }
    Result<backend::Extent> extent(const void* address) override;
    Result<Allocation> open(const backend::Exported& exported) override;
    Result<void> admit(const Buffer& memory) override;
    bool over_nvlink(const Place& other) const override {
        return other.index() == gpu_.index() || seats_.over_nvlink(gpu_.index(), other.index());
    }
    bool multicast() const override;
    std::string gpu_id() const override;
    unsigned multiprocessors() const override;
    Result<std::shared_ptr<const backend::Exported>> move_arena_to_host() override;
    Result<void> reach(unsigned rank, unsigned slot, std::span<char> memory) override;
    Result<void> run(const protocol::CollectiveTask& task, void* stream) override;
    Result<bool> idle() override { return have_ended(&TaskOrder::on_streams); }
    Result<bool> at_rest() override { return have_ended(&TaskOrder::anywhere); }
    std::optional<protocol::FaultRecord> fault() const override;
    void abort() noexcept override;
    void set_deadline(std::uint64_t ns) override;
    void meet(protocol::CopyRow* rows) override { rows_ = rows; }
    Result<void> prepare_copies() override;
    void ask(std::function<protocol::Token(const void*, Bytes)> where) override { where_ = std::move(where); }
    void halt() noexcept override;

    // As if `count` tasks had gone before, on an idle seat: for tests of counters that wrap around.
    Result<void> begin_at(std::uint64_t count);

private:
    // What tasks in flight use.
    struct Held {
        std::shared_ptr<const CollectiveKernels> kernels;
        Allocation arena;
        Allocation control;
        std::unique_ptr<Copies> copies;  // from the first task of its kind on
    };
    // In one slot of HostPages. All but `words` are what copies into the control block read.
    struct Slot {
        HostWords words;
        Reach reach;
        std::uint64_t value;
        std::uint32_t failed;
    };
    struct Known {
        std::uint64_t id = 0;
        backend::Extent extent;
    };
    struct Launch {
        Station station{};
        unsigned blocks = 0;
        unsigned rows = 1;
        unsigned threads = max_data_threads;
        bool plain = false;  // see CollectiveKernels::kernel
    };

    CollectiveSeat(Seats& seats, Gpu& gpu, const backend::SeatRequest& request)
        : seats_(seats),
          gpu_(gpu),
          waits_(seats.shared_streams.waits(gpu)),
          rank_(request.rank),
          ranks_(request.ranks),
          slots_(request.ranks) {}
    Result<void> set_up(std::shared_ptr<const CollectiveKernels> kernels, std::uint64_t deadline_ns);
    Result<void> write_control(std::uint64_t offset, const void* from, std::size_t bytes) const;
    const driver::Cuda& cuda() const { return gpu_.context()->cuda(); }
    CUdeviceptr control() const { return reinterpret_cast<CUdeviceptr>(held_->control.address()); }

    Launch plan(const protocol::CollectiveTask& task) const;
    void plan_slices(const protocol::CollectiveTask& task, Launch& launch) const;
    std::uint32_t grain_of(const protocol::CollectiveTask& task) const;
    void plan_packets(const protocol::CollectiveTask& task, Launch& launch) const;
    void plan_lines(const protocol::CollectiveTask& task, Launch& launch) const;
    void plan_pairs(const protocol::CollectiveTask& task, Launch& launch) const;
    Result<void> check_access(const Place& place) const;
    Result<void> launch(const protocol::CollectiveTask& task, Launch& launch, CUstream stream);
    CopyPost copy_post();
    Result<bool> begin_in_order(CUstream stream);
    Result<void> run_copies(const protocol::CollectiveTask& task, CUstream stream, bool captures);
    // Null before the first task that is made of copies.
    Copies* copies() const { return copies_.load(); }
    Result<backend::Extent> look_up_extent(CUdeviceptr address, std::uint64_t id);
    Result<bool> have_ended(CUresult (TaskOrder::*which)() const);
    enum class Rest { none, running, no_context };
    Rest rest() noexcept;

    Seats& seats_;
    Gpu& gpu_;
    SharedStreams::Waits& waits_;
    const unsigned rank_;
    const unsigned ranks_;
    std::unique_ptr<Held> held_;
    Slot* slot_ = nullptr;
    HostWords* words_on_gpu_ = nullptr;
    std::optional<driver::CudaStream> stream_;  // for what the host writes
    std::mutex tables_;                         // slot_->reach, slot_->value
    protocol::SlotTable slots_;
    protocol::CopyRow* rows_ = nullptr;
    std::function<protocol::Token(const void*, Bytes)> where_;
    std::atomic<Copies*> copies_{nullptr};

    std::mutex enqueuing_;  // of run(): guards what follows
    std::unique_ptr<TaskOrder> order_;
    std::uint64_t enqueued_ = 0;  // tasks

    std::mutex extents_;
    std::array<Known, 64> known_{};
    std::size_t next_known_ = 0;
};

}  // namespace sidestep::backends::cuda
