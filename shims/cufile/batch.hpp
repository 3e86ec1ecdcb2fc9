// Batches: many reads and writes in one call, carried out by threads of the library.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "shims/cufile/moving.hpp"
#include "shims/cufile/task_threads.hpp"

namespace sidestep::cufile {

// Room for so many entries. One that was submitted takes its place until its end has been collected. Safe to use from several
// threads.
class Batch : public std::enable_shared_from_this<Batch> {
public:
    using Time = std::chrono::steady_clock::time_point;

    explicit Batch(unsigned room);

    // All of them, or where one is no entry or there is too little room, none. What else is wrong with one is its own end.
    // Never waits for bytes.
    Refusal submit(const CUfileIOParams_t* entries, unsigned count);

    // Waits until `fewest` have ended or no more can, or until the time comes; then gives up to `most` of them, the first to
    // end first, and answers how many.
    unsigned collect(unsigned fewest, unsigned most, CUfileIOEvents_t* events,
                     const std::optional<Time>& until);

    // Those that no thread has begun end at once, as cancelled. The others go on.
    void cancel();
    // The same, and waits for the others: afterwards nothing reads or writes the caller's memory.
    void finish();

private:
    struct Entry final : Task {
        explicit Entry(Batch& its_batch) : Task(&its_batch), batch(its_batch) {}
        void carry_out() noexcept override;

        Batch& batch;
        std::shared_ptr<Batch> kept;  // while it is on its way
        Prepared prepared;
        CUfileIOEvents_t event{};
    };

    Refusal take(const CUfileIOParams_t* entries, unsigned count, std::vector<Entry*>& taken);
    static Refusal prepare_entry(const CUfileIOParams_t& given, Entry& entry);
    void end(Entry& entry, CUfileStatus_t status, ssize_t result) noexcept;

    std::mutex mutex_;  // guards what follows
    std::condition_variable ended_one_;
    std::deque<Entry> entries_;
    std::vector<Entry*> free_;   // none of the two ever grows beyond the room
    std::vector<Entry*> ended_;  // the first to end first
    std::size_t on_their_way_ = 0;
};

// By the handles that programs hold. Safe to use from several threads.
class Batches {
public:
    static Batches& get();

    Refusal add(unsigned room, CUfileBatchHandle_t& handle);
    // Null for what is no handle, or no longer.
    std::shared_ptr<Batch> find(CUfileBatchHandle_t handle) const;
    std::shared_ptr<Batch> remove(CUfileBatchHandle_t handle);

private:
    mutable std::mutex mutex_;
    std::unordered_map<CUfileBatchHandle_t, std::shared_ptr<Batch>> batches_;
    // Handles are numbers that come once each: one that is gone stays unknown.
    std::uintptr_t next_ = std::uintptr_t{1} << 40;
};

}  // namespace sidestep::cufile
