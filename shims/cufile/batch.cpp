#include "shims/cufile/batch.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "shims/cufile/driver.hpp"
#include "shims/cufile/settings.hpp"
#include "shims/cufile/stats.hpp"

namespace sidestep::cufile {
namespace {

TaskThreads& batch_threads() {
    static auto& one = *new TaskThreads(TaskThreads::as_many_as_suit());
    return one;
}

// cuFile answers this for all that is wrong with a submission.
Refusal not_submitted(std::string words) {
    return refusal(CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR, std::move(words));
}

bool known_opcode(const CUfileIOParams_t& given) {
    return given.opcode == CUFILE_READ || given.opcode == CUFILE_WRITE;
}

Request request_of(const CUfileIOParams_t& given) {
    const auto& what = given.u.batch;
    return {given.fh,           what.devPtr_base,
            what.size,          what.file_offset,
            what.devPtr_offset, given.opcode == CUFILE_WRITE ? CallKind::batch_write : CallKind::batch_read};
}

CUfileStatus_t status_of(const Moved& moved) {
    if (!moved.refused) return CUFILE_COMPLETE;
    return moved.refused.system == ETIMEDOUT ? CUFILE_TIMEOUT : CUFILE_FAILED;
}

void note_bytes(const CUfileIOParams_t* entries, unsigned count) {
    std::uint64_t bytes[2] = {};
    for (unsigned i = 0; i < count; ++i)
        bytes[entries[i].opcode == CUFILE_WRITE ? 1 : 0] += entries[i].u.batch.size;
    note_submission(bytes[0], bytes[1]);
}

void note_refused(CallKind kind) {
    Call call;
    call.kind = kind;
    call.ok = false;
    note(call);
}

}  // namespace

Batch::Batch(unsigned room) {
    for (unsigned i = 0; i < room; ++i) entries_.emplace_back(*this);
    ended_.reserve(room);
    free_.reserve(room);
    for (Entry& entry : entries_) free_.push_back(&entry);
    std::reverse(free_.begin(), free_.end());
}

Refusal Batch::take(const CUfileIOParams_t* entries, unsigned count, std::vector<Entry*>& taken) {
    if (entries == nullptr || count == 0) return not_submitted("there are no entries");
    for (unsigned i = 0; i < count; ++i) {
        if (entries[i].mode != CUFILE_BATCH)
            return not_submitted(
                fmt::format("entry {}: mode {} is not CUFILE_BATCH (1)", i, entries[i].mode));
        if (!Files::get().find(entries[i].fh))
            return not_submitted(
                fmt::format("entry {}: {} is no handle, or was given back", i, entries[i].fh));
    }
    taken.reserve(count);
    const std::lock_guard guard(mutex_);
    if (count > free_.size())
        return not_submitted(fmt::format("{} entries do not fit: of {}, {} are not collected yet", count,
                                         entries_.size(), entries_.size() - free_.size()));
    for (unsigned i = 0; i < count; ++i) {
        taken.push_back(free_.back());
        free_.pop_back();
    }
    on_their_way_ += count;
    return {};
}

Refusal Batch::prepare_entry(const CUfileIOParams_t& given, Entry& entry) {
    if (!known_opcode(given))
        return {CU_FILE_INVALID_VALUE, EINVAL, 0,
                fmt::format("{} is no opcode: 0 reads, 1 writes", given.opcode)};
    return prepare(request_of(given), entry.prepared);
}

Refusal Batch::submit(const CUfileIOParams_t* entries, unsigned count) {
    if (!batch_threads().ready())
        return {CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR, EAGAIN, 0, "no thread can be started"};
    std::vector<Entry*> taken;
    if (auto refused = take(entries, count, taken)) return refused;
    note_bytes(entries, count);
    for (unsigned i = 0; i < count; ++i) {
        Entry& entry = *taken[i];
        entry.event.cookie = entries[i].cookie;
        entry.kept = shared_from_this();
        Moved moved;
        try {
            moved.refused = prepare_entry(entries[i], entry);
        } catch (const std::bad_alloc&) {
            moved.refused.code = CU_FILE_NOMEM_ERROR;
        }
        if (moved.refused) {
            note_refused(request_of(entries[i]).kind);
            note("cuFileBatchIOSubmit", moved.refused);
            end(entry, status_of(moved), result_of(moved));
        } else {
            batch_threads().run(entry);
        }
    }
    return {};
}

void Batch::Entry::carry_out() noexcept {
    Moved moved;
    try {
        moved = move(prepared);
    } catch (...) {
        moved.refused.code = CU_FILE_INTERNAL_ERROR;
    }
    batch.end(*this, status_of(moved), result_of(moved));
}

void Batch::end(Entry& entry, CUfileStatus_t status, ssize_t result) noexcept {
    // The last to go: the batch may have been destroyed by its user.
    const std::shared_ptr<Batch> kept = std::move(entry.kept);
    entry.prepared = {};
    entry.event.status = status;
    entry.event.ret = static_cast<size_t>(result);
    const std::lock_guard guard(mutex_);
    ended_.push_back(&entry);
    --on_their_way_;
    ended_one_.notify_all();
}

unsigned Batch::collect(unsigned fewest, unsigned most, CUfileIOEvents_t* events,
                        const std::optional<Time>& until) {
    std::unique_lock lock(mutex_);
    const auto enough = [&] { return ended_.size() >= fewest || on_their_way_ == 0; };
    if (until)
        ended_one_.wait_until(lock, *until, enough);
    else
        ended_one_.wait(lock, enough);
    const auto count = static_cast<unsigned>(std::min<std::size_t>(most, ended_.size()));
    for (unsigned i = 0; i < count; ++i) {
        events[i] = ended_[i]->event;
        free_.push_back(ended_[i]);
    }
    ended_.erase(ended_.begin(), ended_.begin() + count);
    return count;
}

void Batch::cancel() {
    batch_threads().take_back(
        this, [this](Task& task) { end(static_cast<Entry&>(task), CUFILE_CANCELED, -ECANCELED); });
}

void Batch::finish() {
    cancel();
    std::unique_lock lock(mutex_);
    ended_one_.wait(lock, [this] { return on_their_way_ == 0; });
}

Batches& Batches::get() {
    static auto& one = *new Batches;
    return one;
}

Refusal Batches::add(unsigned room, CUfileBatchHandle_t& handle) {
    const std::size_t most = settings().size(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE);
    if (room == 0 || room > most)
        return refusal(
            CU_FILE_INVALID_VALUE,
            fmt::format("a batch has 1 to {} entries (the setting io_batchsize), not {}", most, room));
    auto batch = std::make_shared<Batch>(room);
    const std::lock_guard guard(mutex_);
    const auto made = reinterpret_cast<CUfileBatchHandle_t>(next_);
    batches_.emplace(made, std::move(batch));
    ++next_;
    handle = made;
    return {};
}

std::shared_ptr<Batch> Batches::find(CUfileBatchHandle_t handle) const {
    const std::lock_guard guard(mutex_);
    const auto found = batches_.find(handle);
    return found == batches_.end() ? nullptr : found->second;
}

std::shared_ptr<Batch> Batches::remove(CUfileBatchHandle_t handle) {
    const std::lock_guard guard(mutex_);
    const auto found = batches_.find(handle);
    if (found == batches_.end()) return nullptr;
    auto batch = std::move(found->second);
    batches_.erase(found);
    return batch;
}

}  // namespace sidestep::cufile
