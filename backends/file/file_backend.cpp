#include "backends/file/file_backend.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "backend/file_piece.hpp"
#include "backends/file/file_jobs.hpp"
#include "backends/file/file_registration.hpp"
#include "backends/file/slices.hpp"
#include "base/kept.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "driver/cpus.hpp"
#include "driver/file_threads.hpp"
#include "driver/opened_file.hpp"
#include "driver/uring.hpp"

namespace sidestep::backends::file {
namespace {

using backend::Capability;
using backend::Reach;
using backend::Support;

// Requests with the kernel at once, at most: 128 of 2 MiB keep any storage busy that answers within 2 ms and
// delivers 100 GB/s. The depth controller finds out how many of them help.
constexpr unsigned depth = 128;

constexpr int max_io_threads = 32;
// Threads that copy between page cache and memory, and what one of them reads at a time where there are many:
// two share a slice then, so that a slot is full sooner. With few processors parts are slower (docs/lab-book.md, "What constants stand on").
constexpr int max_copying_threads = 48;
constexpr unsigned many_copying_threads = 16;
constexpr Bytes part_of_many = 1_MiB;

// With so many of them and more they go on with the copies themselves (transfer::Lookout), and every processor has
// one. With fewer a thread drives beside them, and of three processors has one to itself; two are shared,
// since a reader less would halve the rate.
constexpr int min_driving_processors = 4;
// Up to here. Beyond it one processor in eight is left to the rest of the program, as measured with more of
// them: 48 threads of 64.
constexpr int processors_without_rest = 16;
constexpr int processors_a_rest = 8;

// A warm file, read with threads on a 5th generation Xeon with 16 processors: 7.1 GB/s with one, 25 with 4,
// 40 with 8, 52 with 16.
constexpr double first_thread_gb_per_s = 7;
constexpr double further_thread_gb_per_s = 3;
// Writes to one file take turns (its lock is held while bytes are copied to the page cache): 3 to 4.5 GB/s
// there, on ext4 and tmpfs. Maps of files in memory are quicker, but a capability has one rate for all files.
constexpr double write_gb_per_s = 3;
// A map of a file in memory is written by several threads at once, but each byte costs 1.3 to 1.7 times the
// processor's time of pwrite, which need not clear the pages first (docs/lab-book.md, "Files and
// checkpoints"): a few gain nothing.
constexpr unsigned min_map_writers = 4;
// A thread that copies less than that from the page cache waits for a device most of its time.
constexpr double busy_bytes_per_s = 5e8;
// From the call until the bytes of one small read of a warm file are there.
constexpr double latency_us = 2;

int copying_threads(int processors) {
    if (processors < min_driving_processors) return std::min(processors, 2);
    return std::max(std::min(processors, processors_without_rest),
                    processors - processors / processors_a_rest);
}

class FileBackend final : public backend::Backend {
public:
    FileBackend(FileOptions options, std::unique_ptr<driver::FileIoEngine> engine)
        : options_(options), given_(std::move(engine)) {}
    ~FileBackend() override {
        if (jobs_ && !jobs_->end()) base::keep(std::move(jobs_));
    }

    std::string_view name() const override { return "file"; }

    Support probe(const Topology&) override {
        // More threads than processors: some wait for a device while others copy.
        const int processors = driver::usable_cpu_count();
        threads_ = static_cast<unsigned>(std::clamp(2 * processors, 4, max_io_threads));
        copying_ = static_cast<unsigned>(std::clamp(copying_threads(processors), 1, max_copying_threads));
        maps_ = options_.maps.value_or(copying_ >= min_map_writers);
        cache_probe_ = options_.cache_probe ? *options_.cache_probe : driver::best_cache_probe();
        const std::string asked =
            fmt::format("the page cache is asked with {}", driver::to_string(cache_probe_));
        if (given_) {
            how_ = given_->name();
            use(std::move(given_), nullptr);
            return Support::yes(fmt::format("{}; {}", how_, asked));
        }
        auto chosen = choose(options_.io, threads_);
        if (!chosen) return Support::no(chosen.error().message, chosen.error().hint);
        // The kernel's own threads behind io_uring sleep whenever they have nothing to do, and are as many as there
        // are requests.
        const bool many = copying_ >= many_copying_threads;
        use(std::move(chosen->engine),
            driver::create_thread_engine(depth, many ? copying_ : threads_,
                                         copying_ > 2 ? driver::Wake::when_behind : driver::Wake::always,
                                         many ? part_of_many : 0));
        const std::string& why = chosen->why_threads;
        if (why.empty()) {
            how_ = "io_uring, what the page cache holds by threads";
            return Support::yes(fmt::format("io_uring, up to {} requests deep; {}", depth, asked));
        }
        how_ = "threads, " + why;
        return Support::yes(
            fmt::format("up to {} threads with pread and pwrite, {}; {}", threads_, why, asked));
    }

    std::vector<Capability> capabilities() const override {
        Capability read = backend::reads_files(PlaceKind::host, {MemoryKind::pageable, MemoryKind::pinned},
                                               Reach::storage, "file I/O");
        read.max_gb_per_s = first_thread_gb_per_s +
                            further_thread_gb_per_s * (std::min<unsigned>(copying_, max_io_threads) - 1);
        read.latency_us = latency_us;
        read.reason = "read through " + how_;
        Capability write = backend::reversed(read);
        write.max_gb_per_s = write_gb_per_s;
        write.reason = fmt::format("written through {}{}", how_,
                                   maps_ ? ", whole files in memory through a map of them" : "");
        return {read, write};
    }

    Result<std::optional<backend::Description>> describe(const Buffer& buffer) override {
        if (!buffer.place().is_file()) return std::optional<backend::Description>{};
        SIDESTEP_TRY(const auto facts, driver::inspect(buffer));
        const driver::FileFacts known = facts.value_or(driver::FileFacts{});
        return std::optional(backend::Description{buffer.place(), MemoryKind::storage, known.size,
                                                  known.identity, known.version});
    }

    Result<std::unique_ptr<backend::Registration>> attach(const Buffer& buffer,
                                                          const backend::AttachOptions& options) override {
        using Attached = std::unique_ptr<backend::Registration>;
        if (buffer.place().is_file()) {
            SIDESTEP_TRY(auto file, FileRegistration::open(buffer, options, cache_probe_, maps_, &folders_));
            return Attached(std::move(file));
        }
        if (buffer.place().is_gpu()) return backend::cannot_reach(buffer, name());
        SIDESTEP_CHECK(backend::check_memory(buffer, options.access));
        return Attached(std::make_unique<MemoryRegistration>(buffer));
    }

    Result<backend::Progress> start(const backend::Piece& piece, backend::Flight& flight) override {
        SIDESTEP_TRY(const auto ends,
                     (backend::file_piece<FileRegistration, MemoryRegistration>(piece, name())));
        const Buffer& memory = ends.memory->buffer();
        Stretch stretch{ends.address(), ends.file_offset, piece.size};
        if (!ends.write) {
            stretch.room_before = std::min(piece.room_before, ends.memory_offset);
            stretch.room_after = std::min(piece.room_after, memory.size() - ends.memory_offset - piece.size);
        }
        SIDESTEP_TRY(const std::vector<Slice> slices, slices_of(*ends.file, stretch, ends.write));
        return jobs_->start(*ends.file, *ends.memory, ends.write, slices, flight);
    }

    bool look() override { return jobs_->look(); }

private:
    struct Chosen {
        std::unique_ptr<driver::FileIoEngine> engine;
        std::string why_threads = {};  // rather than io_uring
    };

    static Result<Chosen> choose(base::FileIo io, unsigned threads) {
        std::string why = "as asked for";
        if (io != base::FileIo::threads) {
            auto ring = driver::create_uring_engine(depth, threads);
            if (ring) return Chosen{std::move(*ring)};
            if (io == base::FileIo::uring) return ring.error();
            why = ring.error().to_string();
        }
        return Chosen{driver::create_thread_engine(depth, threads), std::move(why)};
    }

    // In the place of an engine that is broken.
    static Result<std::unique_ptr<driver::FileIoEngine>> remake(base::FileIo io, unsigned threads) {
        SIDESTEP_TRY(Chosen chosen, choose(io, threads));
        base::log(base::LogLevel::warn,
                  fmt::format("io_uring took no request any more; files are read and written by {}",
                              chosen.why_threads.empty() ? "a new ring" : "threads: " + chosen.why_threads));
        return std::move(chosen.engine);
    }

    void use(std::unique_ptr<driver::FileIoEngine> engine, std::unique_ptr<driver::FileIoEngine> copier) {
        FileJobs::Depths depths;
        depths.around = {4, 16, depth};
        depths.written = {4, 32, depth};
        // Each thread that copies has its next request in line soon. More help only where threads wait for what
        // the cache lacks: network file systems.
        const unsigned copies = std::max(4u, copying_ + copying_ / 4);
        depths.copies = {copies, copies, std::max(copies, std::min(2 * threads_, depth)), busy_bytes_per_s};
        jobs_ = std::make_shared<FileJobs>(
            std::move(engine), depths, std::move(copier),
            [io = options_.io, threads = threads_] { return remake(io, threads); });
    }

    // Which bytes go around the page cache, decided as late as can be.
    Result<std::vector<Slice>> slices_of(FileRegistration& file, const Stretch& stretch, bool write) const {
        const auto wish = file.wish(write);
        const bool asks = wish == FileRegistration::Wish::cheaper;
        const auto through_cache = [&](double missing) {
            std::vector<Slice> slices = cut(stretch, false);
            for (Slice& slice : slices) slice.missing = part_of(slice.size, missing);
            return slices;
        };
        const auto all_through_cache = [&] {
            return through_cache(write || stretch.size < min_question ? 0 : file.missing_share());
        };
        if (asks && file.was_warm()) {
            const auto part = file.cached(stretch.offset, stretch.size);
            if (part && part->bytes == stretch.size) return through_cache(0);
        }
        if (wish == FileRegistration::Wish::cache || (asks && stretch.size < min_question) ||
            !file.goes_around())
            return all_through_cache();
        if (!can_go_direct(stretch, file.memory_alignment())) {
            if (!file.insists() || stretch.size < direct_block) return all_through_cache();
            return Error{
                ErrorCode::path_unavailable,
                fmt::format("O_DIRECT cannot move {} bytes at offset {} of {} to or from the address {}",
                            stretch.size, stretch.offset, file.path(), static_cast<void*>(stretch.address)),
                "file backend", "align the memory and the offset to 4 KiB, or let the page cache be used"};
        }
        std::vector<Slice> slices = cut(stretch, true, write ? written_slice_size : slice_size);
        if (asks) {
            use_cache_where_cheaper(slices,
                                    [&file](Bytes offset, Bytes size) { return file.cached(offset, size); });
            // Without the ends that were cut off where blocks begin and end.
            if (std::ranges::none_of(slices, &Slice::direct)) {
                Bytes missing = 0;
                for (const Slice& slice : slices) missing += slice.missing;
                return through_cache(static_cast<double>(missing) / static_cast<double>(stretch.size));
            }
        }
        return slices;
    }

    const FileOptions options_;
    std::unique_ptr<driver::FileIoEngine> given_;
    std::string how_ = "nothing";  // the engine, and why no better one: part of every route
    unsigned threads_ = 1;         // of the engine
    unsigned copying_ = 1;         // that really run at once
    bool maps_ = false;            // targets in memory
    driver::CacheProbe cache_probe_ = driver::CacheProbe::nowait;
    driver::OpenFolders folders_;
    std::shared_ptr<FileJobs> jobs_;  // null where there is no engine; constant after probe()
};

}  // namespace

std::unique_ptr<backend::Backend> create(FileOptions options, std::unique_ptr<driver::FileIoEngine> engine) {
    return std::make_unique<FileBackend>(options, std::move(engine));
}

}  // namespace sidestep::backends::file
