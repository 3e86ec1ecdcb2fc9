// Files spread over memories, or gathered from them, as a Movement.
#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"
#include "route/hops.hpp"
#include "transfer/movement.hpp"
#include "transfer/spread_chunk.hpp"
#include "transfer/spread_files.hpp"

namespace sidestep::transfer {
namespace {

// Chunks taken in one step: a cancellation, the deadline and waiters are looked at in between.
constexpr std::size_t chunks_a_step = 8;
// Chunks beyond those in slots: handed on between GPUs, or moved by storage itself.
constexpr std::size_t chunks_without_slot = 32;
// A load fills that part of its slots at once at most. With all of them readers that are as many as slots
// would end together, and wait together for the copies out of what they read.
constexpr std::size_t filling_of = 5;
constexpr std::size_t filling_in = 8;

// When all written files are whole, they get their names in the order of Spread::files. A failure or a deadline before the
// first name leaves no file. After the first name the rest follow, even if no caller waits any more. If a name cannot be
// given, the files before it have theirs, and are whole; this one and the later ones have none. So the last file proves that
// all are there.
class SpreadJob final : public Movement {
public:
    SpreadJob(Machine& machine, Spread moved, const CopyOptions& options)
        : Movement(machine, options, nullptr,
                   {moved.direction == SpreadDirection::to_memory ? "the load" : "the save", "moved"}),
          spread_(std::move(moved)),
          files_(machine.registry, machine.calls, spread_, file_options(),
                 [this](std::string text) { note(std::move(text)); }) {
        asks_files_or_others_ = true;
        writes_files_ = spread_.direction == SpreadDirection::to_file;
    }
    ~SpreadJob() override { close(); }

    // Looks at files and memories, plans, takes staging memory and starts the first chunks.
    void begin() {
        std::lock_guard lock(mutex_);
        open([this] { return prepare(); }, true);
    }

private:
    bool go_on(bool may_block) override {
        bool moved = step_chunks();
        if (state_ == State::moving || state_ == State::verifying) moved |= take_chunks(may_block);
        if (state_ == State::moving || state_ == State::verifying) moved |= pass_over(may_block);
        return moved;
    }

    bool go_on_beside() override {
        const bool moved = step_chunks();
        return (state_ == State::moving && take_chunks(true)) || moved;
    }

    void stop() override {
        for (auto& chunk : chunks_) chunk->stop();
        if (work_) work_->stopped.store(true, std::memory_order_relaxed);
    }

    bool idle() const override {
        return std::ranges::all_of(chunks_, [](const auto& chunk) { return chunk->idle(); });
    }

    bool waits_for_calls() const override { return files_.calling() || (work_ && work_->calling()); }
    bool needs_driver() const override { return files_.may_close() || idle(); }

    std::string where() const override { return "spread"; }
    Result<void> make_final() override {
        if (work_->loads()) return {};
        SIDESTEP_CHECK(work_->check_sources());
        const auto& closing = spread_.closing;
        if (closing) SIDESTEP_CHECK(closing->before_names());
        if (auto named = files_.commit([this] { return given_up(); }); !named) {
            Error error = named.error();
            if (!closing) return error;
            if (files_.committed() > 0)
                closing->give_up();
            else if (auto undone = closing->without_names(); !undone)
                error.message += fmt::format("; and {}", undone.error().message);
            return error;
        }
        if (!closing) return {};
        SIDESTEP_TRY(auto notes, closing->after_names());
        for (std::string& text : notes) note(std::move(text));
        return {};
    }

    Receipt receipt() override {
        auto route = std::make_shared<Route>(work_->way.route);
        receipt_.bytes = work_->bytes.memories;
        // As many bytes as the receipt reports: the sum over all places.
        if (work_->bytes.files > 0) {
            route->expected_gb_per_s *=
                static_cast<double>(receipt_.bytes) / static_cast<double>(work_->bytes.files);
            route->bytes = receipt_.bytes;
        }
        receipt_.route = std::move(route);
        receipt_.lane_bytes = work_->arrived;
        receipt_.lane_bytes.resize(receipt_.route->lanes.size());
        receipt_.lane_failures.resize(receipt_.route->lanes.size());
        receipt_.storage = files_.storage();
        receipt_.stages = work_->stages.stages();
        files_.note_touched();
        return std::move(receipt_);
    }

    void release() override {
        chunks_.clear();
        work_.reset();
        let_go(files_.take_open());
    }

    Result<void> prepare() {
        if (spread_.closing) {
            SIDESTEP_CHECK(spread_.closing->begin());
            if (spread_.closing->wants_sync()) files_.sync();
        }
        SIDESTEP_CHECK(files_.inspect());
        work_.reset(new SpreadWork(machine_, spread_, options_, files_, *this));
        SIDESTEP_CHECK(work_->prepare());
        total_.store(work_->bytes.memories, std::memory_order_relaxed);
        name_stages();
        if (work_->bytes.files > 0) {
            start_pass(work_->file_backends());
            return {};
        }
        if (work_->loads() || spread_.files.empty()) return {};
        // Somebody has to make files of no bytes.
        const auto& offers = machine_.registry.offers();
        const auto writer = route::best_hop(machine_.topology, offers, {Place::host()},
                                            {spread_.files.front().buffer().place(), MemoryKind::storage});
        if (!writer.possible())
            return Error{ErrorCode::unsupported, "no backend writes files here", "spread", writer.remedy};
        files_.begin({chosen(machine_.registry, offers, writer.choice).backend});
        return {};
    }

    void name_stages() {
        const bool gpus =
            std::ranges::any_of(spread_.memories, [](const Buffer& one) { return one.place().is_gpu(); });
        SpreadStages& stages = work_->stages;
        if (work_->loads()) {
            stages.name(SpreadStages::filling, "read");
            if (work_->way.uses_slots())
                stages.name(SpreadStages::emptying, gpus ? "host to GPU" : "host to host");
            if (std::ranges::any_of(work_->way.groups, [](const auto& group) { return group.size() > 1; }))
                stages.name(SpreadStages::handing_on, "GPU to GPU");
        } else {
            const bool reads = std::ranges::any_of(spread_.memories,
                                                   [](const Buffer& one) { return one.place().is_file(); });
            stages.name(SpreadStages::filling, gpus ? "GPU to host" : reads ? "read" : "host to host");
            stages.name(SpreadStages::emptying, "write");
        }
        if (options_.verify) stages.name(SpreadStages::verifying, "verify");
    }

    // Every byte is to be moved, or read again.
    void start_pass(std::vector<backend::Backend*> backends) {
        files_.begin(std::move(backends));
        const bool shares =
            work_->loads() && std::ranges::any_of(work_->bytes.own, [](double part) { return part > 0; });
        cursor_ = SpreadCursor(spread_.files, work_->chunk, shares ? spread_.placement.get() : nullptr);
    }

    // The oldest first, so that slots come free for those behind.
    bool step_chunks() {
        bool moved = false;
        for (auto& chunk : chunks_) {
            auto stepped = chunk->step();
            if (stepped)
                moved |= *stepped;
            else
                fail(stepped.error());
            if (chunk->ended()) files_.landed(chunk->cell().file, chunk->cell().bytes());
        }
        // One that was given up goes when nothing of it is in flight.
        std::erase_if(chunks_, [&](const auto& chunk) {
            return chunk->ended() || (state_ == State::draining && chunk->idle());
        });
        Bytes done = 0;
        if (work_)
            for (const Bytes bytes : work_->arrived) done += bytes;
        done_.store(done, std::memory_order_relaxed);
        return moved;
    }

    bool take_chunks(bool may_block) {
        bool moved = false;
        // Files are opened, and looked at again, here.
        for (std::size_t taken = 0; may_block && taken < chunks_a_step; ++taken) {
            auto took = take_chunk();
            if (!took) {
                fail(took.error());
                return true;
            }
            if (!*took) break;
            moved = true;
        }
        return moved;
    }

    // Starts a chunk; false where there is none, or no room for it.
    Result<bool> take_chunk() {
        if (cursor_.empty() || enough_at_work()) return false;
        SIDESTEP_TRY(const bool open, files_.open(cursor_.next_files(SpreadFiles::files_ahead)));
        if (!open) return false;
        const bool check = state_ == State::verifying;
        std::vector<std::size_t> slots(check ? 2 : work_->way.uses_slots() ? 1 : 0);
        if (work_->ring.free.size() < slots.size()) return false;
        for (std::size_t& slot : slots) slot = work_->ring.take();
        chunks_.push_back(std::make_unique<SpreadChunk>(*work_, check ? ChunkTask::check : ChunkTask::move,
                                                        cursor_.take(), std::move(slots)));
        SIDESTEP_CHECK(chunks_.back()->step());
        return true;
    }

    bool enough_at_work() const {
        if (chunks_.size() >= work_->ring.slots + chunks_without_slot) return true;
        if (!work_->loads() || state_ == State::verifying || !work_->way.uses_slots()) return false;
        const auto filling =
            std::ranges::count_if(chunks_, [](const auto& chunk) { return chunk->filling(); });
        return static_cast<std::size_t>(filling) >=
               std::max<std::size_t>(work_->ring.slots * filling_of / filling_in, 1);
    }

    // Closes files whose bytes have all moved, and goes on to the next state after the last of them.
    bool pass_over(bool may_block) {
        bool moved = false;
        if (may_block) {
            auto closed = files_.close_finished(aside(), cursor_.empty() && chunks_.empty());
            if (!closed) {
                fail(closed.error());
                return true;
            }
            moved = *closed;
        }
        const bool over = cursor_.empty() && chunks_.empty() && files_.all_closed();
        if (!over) return moved;
        state_ == State::moving ? all_arrived() : all_equal();
        return true;
    }

    void all_arrived() {
        receipt_.seconds = seconds_since_start();
        files_.end_count();
        state_ = State::committing;
        if (!options_.verify) return;
        receipt_.verified = true;  // nothing to compare in no bytes
        if (work_->bytes.files == 0) return;
        state_ = State::verifying;
        // What was written is read through the registrations that wrote it.
        start_pass({(work_->loads() ? work_->reader : work_->storage).backend});
    }

    const Spread spread_;
    // With the mutex held.
    SpreadFiles files_;
    std::unique_ptr<SpreadWork> work_;
    SpreadCursor cursor_;
    std::vector<std::unique_ptr<SpreadChunk>> chunks_;  // in flight
};

}  // namespace

std::shared_ptr<Movement> begin_spread(Machine& machine, Spread spread, const CopyOptions& options) {
    auto job = std::make_shared<SpreadJob>(machine, std::move(spread), options);
    job->begin();
    return job;
}

}  // namespace sidestep::transfer
