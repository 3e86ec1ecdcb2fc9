#include "transfer/spread_job.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"

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

backend::AttachOptions file_options(const CopyOptions& options) {
    backend::AttachOptions made;
    made.page_cache = options.page_cache;
    made.sync_file = options.sync_file;
    made.strict = options.require == Require::direct;
    return made;
}

// Who makes files of no bytes.
backend::Backend* writer_of(const backend::Registry& registry) {
    for (const backend::Offer& offer : registry.offers())
        for (const backend::Capability& capability : offer.capabilities)
            if (offer.support.usable && capability.from == PlaceKind::host &&
                capability.to == PlaceKind::file)
                return registry.find(offer.name);
    return nullptr;
}

}  // namespace

SpreadJob::SpreadJob(const Machine& machine, Spread spread, const CopyOptions& options)
    : Movement(machine, options, nullptr,
               {spread.direction == SpreadDirection::to_memory ? "the load" : "the save", "moved"}),
      spread_(std::move(spread)),
      files_(machine.registry, machine.calls, spread_, file_options(options)) {
    asks_files_or_others_ = true;
    writes_files_ = spread_.direction == SpreadDirection::to_file;
}

void SpreadJob::begin() {
    std::lock_guard lock(mutex_);
    open([this] { return prepare(); }, true);
}

Result<void> SpreadJob::prepare() {
    if (spread_.closing) {
        SIDESTEP_CHECK(spread_.closing->begin());
        if (spread_.closing->wants_sync()) files_.sync();
    }
    SIDESTEP_CHECK(files_.inspect());
    SIDESTEP_TRY(setup_, SpreadSetup::make(machine_, spread_, options_));
    work_.reset(new SpreadWork{spread_, *setup_, files_, *this});
    work_->arrived.resize(setup_->lanes());
    total_.store(setup_->bytes().memories, std::memory_order_relaxed);
    name_stages();
    if (setup_->bytes().files > 0) {
        start_pass(setup_->file_backends());
        return {};
    }
    backend::Backend* writer = work_->loads() ? nullptr : writer_of(machine_.registry);
    if (writer == nullptr && !work_->loads() && !spread_.files.empty())
        return Error{ErrorCode::unsupported, "no backend writes files here", "spread", {}};
    if (writer != nullptr) files_.begin({writer});
    return {};
}

void SpreadJob::name_stages() {
    const bool gpus = std::any_of(spread_.memories.begin(), spread_.memories.end(),
                                  [](const Buffer& memory) { return memory.place().is_gpu(); });
    SpreadStages& stages = work_->stages;
    if (work_->loads()) {
        work_->filling = stages.add("read");
        work_->emptying =
            setup_->way().uses_slots() ? stages.add(gpus ? "host to GPU" : "host to host") : work_->filling;
        const auto& groups = setup_->way().groups;
        if (std::any_of(groups.begin(), groups.end(), [](const auto& group) { return group.size() > 1; }))
            work_->handing_on = stages.add("GPU to GPU");
    } else {
        const bool reads = std::any_of(spread_.memories.begin(), spread_.memories.end(),
                                       [](const Buffer& memory) { return memory.place().is_file(); });
        work_->filling = stages.add(gpus ? "GPU to host" : reads ? "read" : "host to host");
        work_->emptying = stages.add("write");
    }
    if (options_.verify) work_->verifying = stages.add("verify");
}

// Every byte is to be moved, or read again.
void SpreadJob::start_pass(std::vector<backend::Backend*> backends) {
    files_.begin(std::move(backends));
    const std::vector<double>& own = setup_->bytes().own;
    const bool shares =
        work_->loads() && std::any_of(own.begin(), own.end(), [](double part) { return part > 0; });
    cursor_ = SpreadCursor(spread_.files, setup_->chunk(), shares ? spread_.placement.get() : nullptr);
    max_chunks_ = setup_->slots() + chunks_without_slot;
    max_filling_ = std::max<std::size_t>(setup_->slots() * filling_of / filling_in, 1);
}

bool SpreadJob::go_on_beside() {
    bool moved = step_chunks();
    if (state_ == State::moving) moved |= take_chunks(true);
    publish_progress();
    return moved;
}

bool SpreadJob::needs_driver() const {
    return files_.may_close() || (cursor_.empty() && chunks_.empty());
}

bool SpreadJob::go_on(bool may_block) {
    bool moved = step_chunks();
    if (state_ == State::moving || state_ == State::verifying) moved |= take_chunks(may_block);
    if (state_ == State::moving || state_ == State::verifying) moved |= pass_over(may_block);
    publish_progress();
    return moved;
}

bool SpreadJob::settle(bool) {
    const bool moved = step_chunks();
    publish_progress();
    return moved;
}

// The oldest first, so that slots come free for those behind.
bool SpreadJob::step_chunks() {
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
    return moved;
}

bool SpreadJob::take_chunks(bool may_block) {
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

bool SpreadJob::enough_filling() const {
    if (!work_->loads() || state_ == State::verifying || !setup_->way().uses_slots()) return false;
    const auto filling =
        std::count_if(chunks_.begin(), chunks_.end(), [](const auto& chunk) { return chunk->filling(); });
    return static_cast<std::size_t>(filling) >= max_filling_;
}

// Starts a chunk; false where there is none, or no room for it.
Result<bool> SpreadJob::take_chunk() {
    if (cursor_.empty() || chunks_.size() >= max_chunks_ || enough_filling()) return false;
    SIDESTEP_TRY(const bool open, files_.open(cursor_.next_file()));
    if (!open) return false;
    const bool check = state_ == State::verifying;
    auto slots = setup_->take_slots(check ? 2 : setup_->way().uses_slots() ? 1 : 0);
    if (!slots) return false;
    chunks_.push_back(std::make_unique<SpreadChunk>(*work_, check ? ChunkTask::check : ChunkTask::move,
                                                    cursor_.take(), std::move(*slots)));
    SIDESTEP_CHECK(chunks_.back()->step());
    return true;
}

// Closes files whose bytes have all moved, and goes on to the next state after the last of them.
bool SpreadJob::pass_over(bool may_block) {
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

void SpreadJob::all_arrived() {
    receipt_.seconds = seconds_since_start();
    files_.end_count();
    state_ = State::committing;
    if (!options_.verify) return;
    receipt_.verified = true;  // nothing to compare in no bytes
    if (setup_->bytes().files == 0) return;
    state_ = State::verifying;
    if (work_->loads())
        start_pass({setup_->reader().backend});
    else
        start_pass({setup_->storage().backend});  // through the registrations that wrote them
}

Result<void> SpreadJob::make_final() {
    if (work_->loads()) return {};
    SIDESTEP_CHECK(setup_->check_sources());
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
    SIDESTEP_TRY(receipt_.notes, closing->after_names());
    return {};
}

void SpreadJob::stop() {
    for (auto& chunk : chunks_) chunk->stop();
    if (work_) work_->stopped.store(true, std::memory_order_relaxed);
}

Receipt SpreadJob::receipt() {
    auto route = std::make_shared<Route>(setup_->way().route);
    receipt_.bytes = setup_->bytes().memories;
    // As many bytes as the receipt reports: the sum over all places.
    if (setup_->bytes().files > 0) {
        route->expected_gb_per_s *=
            static_cast<double>(receipt_.bytes) / static_cast<double>(setup_->bytes().files);
        route->bytes = receipt_.bytes;
    }
    receipt_.route = std::move(route);
    receipt_.lane_bytes = work_->arrived;
    receipt_.lane_bytes.resize(receipt_.route->lanes.size());
    receipt_.lane_failures.resize(receipt_.route->lanes.size());
    receipt_.storage = files_.storage();
    receipt_.stages = work_->stages.stages();
    std::vector<std::string> notes = files_.take_notes();
    notes.insert(notes.end(), receipt_.notes.begin(), receipt_.notes.end());
    receipt_.notes = std::move(notes);
    return std::move(receipt_);
}

void SpreadJob::release() {
    chunks_.clear();
    work_.reset();
    setup_.reset();
    let_go(files_.take_open());
}

void SpreadJob::publish_progress() {
    Bytes done = 0;
    if (work_)
        for (const Bytes bytes : work_->arrived) done += bytes;
    done_.store(done, std::memory_order_relaxed);
}

bool SpreadJob::idle() const {
    return std::all_of(chunks_.begin(), chunks_.end(), [](const auto& chunk) { return chunk->idle(); });
}

}  // namespace sidestep::transfer
