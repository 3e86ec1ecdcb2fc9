// The exported functions about batches.
#include <chrono>
#include <optional>

#include <fmt/format.h>

#include "shims/cufile/batch.hpp"
#include "shims/cufile/driver.hpp"

using namespace sidestep::cufile;

namespace {

// A longer limit is none: the sum with the time now would not be one.
constexpr time_t longest_limit_s = time_t{10} * 365 * 24 * 3600;

Refusal limit_of(const timespec* timeout, std::optional<Batch::Time>& until) {
    if (timeout == nullptr) return {};
    if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1'000'000'000)
        return refusal(CU_FILE_INVALID_VALUE,
                       fmt::format("{} s and {} ns are no time limit", timeout->tv_sec, timeout->tv_nsec));
    if (timeout->tv_sec > longest_limit_s) return {};
    until = std::chrono::steady_clock::now() + std::chrono::seconds(timeout->tv_sec) +
            std::chrono::nanoseconds(timeout->tv_nsec);
    return {};
}

Refusal collect(CUfileBatchHandle_t handle, unsigned fewest, unsigned* count, CUfileIOEvents_t* events,
                const timespec* timeout) {
    const auto batch = Batches::get().find(handle);
    if (!batch)
        return refusal(CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR, "this is no batch, or it was destroyed");
    if (count == nullptr || (*count != 0 && events == nullptr))
        return refusal(CU_FILE_INVALID_VALUE, "the number or the list of events is null");
    if (fewest > *count)
        return refusal(CU_FILE_INVALID_VALUE,
                       fmt::format("at least {} events do not fit a list of {}", fewest, *count));
    std::optional<Batch::Time> until;
    if (auto refused = limit_of(timeout, until)) return refused;
    *count = batch->collect(fewest, *count, events, until);
    note(Event::entries_collected, true, *count);
    return {};
}

}  // namespace

extern "C" {

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t* batch, unsigned entries) {
    const CUfileError_t done = answer("cuFileBatchIOSetUp", [&]() -> Refusal {
        if (batch == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the batch's address is null");
        if (auto refused = Driver::get().ensure_open()) return refused;
        return Batches::get().add(entries, *batch);
    });
    note(Event::batch_made, done.err == CU_FILE_SUCCESS);
    return done;
}

// No version gives the flags a meaning.
CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t handle, unsigned count, CUfileIOParams_t* entries,
                                  unsigned) {
    const auto begun = std::chrono::steady_clock::now();
    const CUfileError_t done = answer("cuFileBatchIOSubmit", [&]() -> Refusal {
        const auto batch = Batches::get().find(handle);
        if (!batch)
            return refusal(CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR, "this is no batch, or it was destroyed");
        return batch->submit(entries, count);
    });
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begun;
    note(Event::batch_submitted, done.err == CU_FILE_SUCCESS, 1, static_cast<std::uint64_t>(took.count()));
    note(Event::entries_submitted, done.err == CU_FILE_SUCCESS, count);
    return done;
}

CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t handle, unsigned fewest, unsigned* count,
                                     CUfileIOEvents_t* events, struct timespec* timeout) {
    return answer("cuFileBatchIOGetStatus", [&] { return collect(handle, fewest, count, events, timeout); });
}

// As cuFile has it, there is nothing wrong with a batch that is none.
CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t handle) {
    const CUfileError_t done = answer("cuFileBatchIOCancel", [&]() -> Refusal {
        if (const auto batch = Batches::get().find(handle)) batch->cancel();
        return {};
    });
    note(Event::batch_cancelled, done.err == CU_FILE_SUCCESS);
    return done;
}

void cuFileBatchIODestroy(CUfileBatchHandle_t handle) {
    const CUfileError_t done = answer("cuFileBatchIODestroy", [&]() -> Refusal {
        const auto batch = Batches::get().remove(handle);
        if (!batch) return refusal(CU_FILE_INVALID_VALUE, "this is no batch, or it was destroyed");
        batch->finish();
        return {};
    });
    note(Event::batch_destroyed, done.err == CU_FILE_SUCCESS);
}
}
