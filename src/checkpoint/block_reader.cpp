#include "checkpoint/block_reader.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/file_version.hpp"
#include "base/try.hpp"
#include "base/workers.hpp"
#include "checkpoint/files_reader.hpp"
#include "checkpoint/manifest.hpp"
#include "driver/cpus.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr std::size_t max_block_threads = 8;
// Blocks that one thread reads in one go.
constexpr std::size_t blocks_at_once = 16;
constexpr std::chrono::milliseconds between_looks{50};

class BlockReader {
public:
    BlockReader(const std::vector<CheckpointFile>& files, const VisitBlock& visit)
        : files_(files), visit_(visit) {
        for (std::size_t file = 0; file < files.size(); ++file) {
            total_ += files[file].size;
            for (Bytes begin = 0; begin < files[file].size; begin += blocks_at_once * Manifest::usual_block)
                units_.push_back({file, begin});
        }
    }

    Result<ManifestRun> run(const Checkpoint::Progress& progress) {
        const auto begun = std::chrono::steady_clock::now();
        const bool go_on = (!progress || progress(0, total_)) && read_all(progress);
        if (failure_) return failure_->second;
        if (!go_on) return Error{ErrorCode::cancelled, "the reading of the files was stopped", {}, {}};
        ManifestRun done;
        done.bytes = done_;
        done.blocks = blocks_;
        done.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
        return done;
    }

private:
    struct Unit {
        std::size_t file = 0;
        Bytes begin = 0;
    };

    // By several threads, or, where there are none, by this one. False where the caller wants no more.
    bool read_all(const Checkpoint::Progress& progress) {
        const std::size_t wanted = std::min(
            {max_block_threads, units_.size(), static_cast<std::size_t>(driver::usable_cpu_count())});
        base::Workers workers({wanted}, "files");
        if (!workers.add(std::vector<base::Workers::Task>(wanted, [this] { work(); }))) work();
        while (!workers.wait_for(between_looks)) {
            if (!progress || stop_.load() || progress(done_.load(), total_)) continue;
            stop_ = true;
            return workers.wait(), false;
        }
        return true;
    }

    void work() {
        try {
            std::string memory(Manifest::usual_block, '\0');
            for (std::size_t unit = next_++; unit < units_.size() && !stop_.load(); unit = next_++) {
                const auto read = read_unit(units_[unit], memory);
                if (!read) return note_failure(unit, read.error());
            }
        } catch (const std::exception&) {
            note_failure(0, Error{ErrorCode::out_of_memory, "there is no memory to read files", {}, {}});
        }
    }

    Result<void> read_unit(const Unit& unit, std::string& memory) {
        const CheckpointFile& file = files_[unit.file];
        SIDESTEP_TRY(const OpenFile open, open_regular(file.path));
        if (!base::same_content(open.facts.version, file.identity)) {
            return Error{ErrorCode::io_error, fmt::format("{} has changed since it was opened", file.path),
                         file.path, "open the checkpoint again"};
        }
        const Bytes end = std::min(file.size, unit.begin + blocks_at_once * Manifest::usual_block);
        for (Bytes at = unit.begin; at < end && !stop_.load(); at += Manifest::usual_block) {
            const Bytes size = std::min(Manifest::usual_block, end - at);
            SIDESTEP_CHECK(driver::read_range(open.fd, at, memory.data(), size, file.path));
            SIDESTEP_CHECK(visit_(unit.file, at, memory.data(), size));
            done_ += size;
            ++blocks_;
        }
        return {};
    }

    void note_failure(std::size_t unit, const Error& error) {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        if (!failure_ || unit < failure_->first) failure_ = {unit, error};
    }

    const std::vector<CheckpointFile>& files_;
    const VisitBlock& visit_;
    std::vector<Unit> units_;
    Bytes total_ = 0;
    std::atomic<std::size_t> next_{0};
    std::atomic<Bytes> done_{0};
    std::atomic<std::size_t> blocks_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::optional<std::pair<std::size_t, Error>> failure_;  // under mutex_
};

}  // namespace

Result<ManifestRun> read_blocks(const std::vector<CheckpointFile>& files, const VisitBlock& visit,
                                const Checkpoint::Progress& progress) {
    return BlockReader(files, visit).run(progress);
}

}  // namespace sidestep::checkpoint
