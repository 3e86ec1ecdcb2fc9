// Files opened for reading or writing.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>

#include "backend/backend.hpp"
#include "driver/fd.hpp"
#include "driver/opened_file.hpp"
#include "driver/page_cache.hpp"
#include "driver/target_map.hpp"

namespace sidestep::backends::file {

class FileJobs;

// An open file. One opened for writing can be read as well.
class FileRegistration final : public backend::Registration {
public:
    // `probe`: how to ask for what the page cache holds. `maps`: whole-file targets in memory are written
    // through a map, where that can be. `folders`: as for driver::ReplacedFile::begin().
    static Result<std::unique_ptr<FileRegistration>> open(const Buffer& buffer,
                                                          const backend::AttachOptions& options,
                                                          driver::CacheProbe probe, bool maps = false,
                                                          driver::OpenFolders* folders = nullptr);

    const std::string& path() const { return buffer().place().path(); }
    bool writable() const { return options_.access == backend::Access::write; }
    // Whether bytes that cannot go around the page cache are an error.
    bool insists() const { return options_.strict && options_.page_cache == PageCache::bypass; }

    // Which way bytes are to go.
    enum class Wish {
        cache,    // through the page cache
        cheaper,  // whichever way costs less now
        around,   // around the page cache
    };
    Wish wish(bool write) const;

    // A small file that the page cache held whole when it was opened: it is not opened a second time, with O_DIRECT,
    // unless a page is gone.
    bool was_warm() const { return was_warm_; }

    // Whether bytes can go around the page cache at all. The first call finds out. Any thread.
    bool goes_around();
    // From now on they cannot: the device has refused though its file system did not.
    void stop_going_around() { refused_ = true; }
    // What addresses must be multiples of; after goes_around() said yes.
    Bytes memory_alignment() const { return memory_alignment_; }

    // What the page cache holds of a range. Any thread.
    std::optional<driver::CachedPart> cached(Bytes offset, Bytes size);

    // Which share of the file the page cache did not hold before anything of it was read through the cache: later the
    // kernel has read ahead. 0 where that cannot be told. The first call finds out. Any thread.
    double missing_share();

    const driver::Fd& fd(bool around_cache) const {
        if (around_cache) return direct_;
        return opened_.fd();
    }

    // Where a range to be written is mapped; null where it is not, or is not to be written that way any more.
    // Any thread.
    void* mapped(Bytes offset, Bytes size) const {
        return map_ && !unmapped_.load(std::memory_order_relaxed) ? map_->at(offset, size) : nullptr;
    }
    // From now on nothing is written through the map: pages of it are not to be had.
    void stop_mapping() { unmapped_ = true; }

    // Some of it was not copied by threads, since none could be started. Any thread.
    void miss_threads() { missed_threads_ = true; }
    // Nor by the ring, which is broken: what the route says of the engine is what there was at first.
    void miss_ring() { missed_ring_ = true; }

    // Counts bytes that have moved in the direction that the file was opened for: what verification reads of
    // a target does not count. `missed` of those through the page cache were not there. Any thread.
    void count(bool around_cache, Bytes bytes, Bytes missed) {
        (around_cache ? around_cache_ : through_cache_).fetch_add(bytes, std::memory_order_relaxed);
        missed_.fetch_add(missed, std::memory_order_relaxed);
    }
    // Of these, through the map.
    void count_mapped(Bytes bytes) { through_map_.fetch_add(bytes, std::memory_order_relaxed); }

    Result<void> commit() override { return opened_.commit(options_.sync_file); }
    void rest() override {
        const std::lock_guard lock(around_);
        direct_ = driver::Fd();
    }
    std::optional<std::vector<backend::Span>> extents() const override;
    bool reads_as_zeros() const override { return opened_.is_sparse(); }
    std::vector<std::string> notes() const override;
    StorageBytes storage_bytes() const override { return {0, around_cache_, through_cache_, missed_}; }

private:
    friend class FileJobs;
    FileRegistration(const Buffer& buffer, const backend::AttachOptions& options, driver::CacheProbe probe)
        : Registration(buffer), options_(options), probe_(probe) {}
    Result<void> make_room(bool maps);
    Result<void> go_direct();
    Result<driver::Fd> open_around();
    void choose_probe();

    const backend::AttachOptions options_;
    driver::OpenedFile opened_;
    std::optional<driver::TargetMap> map_;  // of a whole-file target
    std::atomic<bool> unmapped_{false};
    std::vector<std::string> notes_;

    std::mutex around_;  // guards what follows, up to refused_; direct_ stays as it is while a piece uses it
    driver::Fd direct_;  // the same file with O_DIRECT
    bool was_around_ = false;  // it was open
    Bytes memory_alignment_ = 0;
    std::optional<Error> why_not_around_;
    std::atomic<bool> refused_{false};

    std::once_flag probe_chosen_;
    std::atomic<std::optional<driver::CacheProbe>> probe_;  // nothing: none answers
    bool was_warm_ = false;
    std::once_flag looked_;  // guards the next
    double missing_share_ = 0;

    // Guarded by the mutex of FileJobs: when a request ended last, and whether others hang.
    std::chrono::steady_clock::time_point last_ended_{};
    bool hangs_ = false;

    std::atomic<Bytes> around_cache_{0};
    std::atomic<Bytes> through_cache_{0};
    std::atomic<Bytes> through_map_{0};
    std::atomic<Bytes> missed_{0};
    std::atomic<bool> missed_threads_{false};
    std::atomic<bool> missed_ring_{false};
};

}  // namespace sidestep::backends::file
