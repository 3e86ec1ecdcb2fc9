#include "transfer/spread_chunk.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "transfer/lane.hpp"

namespace sidestep::transfer {
namespace {

// Bytes between two parts that are read along: less work than a request of their own.
constexpr Bytes read_along = Bytes{64} << 10;

// What is read or written at once. What lies between two parts may be read too, never written. The parts ascend.
std::vector<Run> requests_of(const std::vector<FileRange>& parts, Bytes gap) {
    std::vector<Run> requests;
    for (const FileRange& part : parts) {
        const Bytes end = requests.empty() ? 0 : requests.back().file_offset + requests.back().size;
        if (!requests.empty() && part.begin <= end + gap)
            requests.back().size = std::max(part.end, end) - requests.back().file_offset;
        else
            requests.push_back({part.begin, part.end - part.begin, 0, 0});
    }
    return requests;
}

// Joins runs that lie together in the file, the memory and the target memory. Runs of one memory, in the order of the file.
void merge_adjacent(std::vector<Run>& runs) {
    std::size_t last = 0;
    for (std::size_t i = 1; i < runs.size(); ++i) {
        Run& before = runs[last];
        const Run& run = runs[i];
        if (before.memory == run.memory && before.file_offset + before.size == run.file_offset &&
            before.memory_offset + before.size == run.memory_offset)
            before.size += run.size;
        else
            runs[++last] = run;
    }
    if (!runs.empty()) runs.resize(last + 1);
}

}  // namespace

// Runs on their way: a lane of one hop, whose chunks are single runs, or many of them where the engine takes batches.
struct SpreadChunk::Part final : LaneParts {
    // `by` and `its_runs` outlive the part; no run is empty. All memory is attached to the mover.
    Part(const SpreadChunk& of, const ReadyHop& by, const Side& its_from, const Side& its_to,
         std::span<const Run> its_runs, SpreadStages::Number its_stage, std::optional<std::size_t> its_lane)
        : chunk(of),
          mover(by),
          from(its_from),
          to(its_to),
          runs(its_runs),
          stage(its_stage),
          lane(its_lane),
          calls(cursor_of_parts(runs, mover.backend->batcher() != nullptr ? parts_a_call : 1, Buffer::whole)),
          runner({.owner = &chunk.work_.owner,
                  .hops = {&mover, 1},
                  .parts = this,
                  .chunk = Buffer::whole,
                  .depth = max_flights}) {
        for (const Run& run : runs) bytes += run.size;
    }

    // Every run has arrived.
    bool ended() const { return runner.idle() && calls.empty(); }

    std::span<const backend::Piece> pieces(Cursor::Span call, const backend::Piece& all) override {
        made.clear();
        for (const Run& run : parts_of(runs, call)) made.push_back(piece_of(run, all));
        return made;
    }
    Error told(Error error, Cursor::Span call) const override {
        return chunk.place_error(error, runs[call.offset].file_offset, where);
    }

    backend::Registration* at(const Side& side, const Run& run, backend::Access access) const {
        if (side.kind == Side::Kind::file) return side.registration;
        const std::size_t which = side.memory != Side::of_each_run ? side.memory : run.memory;
        return chunk.work_.attached().find(which, mover.backend, access);
    }

    Bytes offset_in(const Side& side, const Run& run) const {
        if (side.kind == Side::Kind::file) return run.file_offset;
        if (side.kind == Side::Kind::memory) return run.memory_offset;
        return side.slot_begin + (run.file_offset - chunk.cell_.begin);
    }

    backend::Piece piece_of(const Run& moved, backend::Piece piece) const {
        piece.from = at(from, moved, backend::Access::read);
        piece.from_offset = offset_in(from, moved);
        piece.to = at(to, moved, backend::Access::write);
        piece.to_offset = offset_in(to, moved);
        piece.size = moved.size;
        if (from.kind == Side::Kind::file && to.kind == Side::Kind::slot) {
            // Up to the neighbours in the slot, and its ends.
            const Run* const run = &moved;
            const Bytes floor = run == &runs.front() ? to.slot_begin : offset_in(to, run[-1]) + run[-1].size;
            const Bytes ceiling =
                run == &runs.back() ? to.slot_begin + chunk.work_.chunk : offset_in(to, run[1]);
            piece.room_before = piece.to_offset - floor;
            piece.room_after = ceiling - (piece.to_offset + piece.size);
        }
        return piece;
    }

    // The rest follows as these end, so that a chunk of many small runs stays bounded.
    static constexpr std::size_t max_flights = 16;

    const SpreadChunk& chunk;
    const ReadyHop& mover;
    const Side from;
    const Side to;
    const std::span<const Run> runs;
    const SpreadStages::Number stage;
    const std::optional<std::size_t> lane;  // of the memory at its end
    std::string where;                      // its place
    bool enters = false;                    // what is shared comes to its group by it
    Bytes bytes = 0;
    std::vector<backend::Piece> made;  // of the call that is made
    Cursor calls;
    LaneRunner runner;
};

SpreadChunk::~SpreadChunk() = default;

SpreadChunk::SpreadChunk(SpreadWork& work, ChunkTask task, Cell cell, std::vector<std::size_t> slots)
    : work_(work), task_(task), cell_(std::move(cell)), slots_(std::move(slots)) {}

// Asks the placement for the runs, and checks them: a run outside its memory would overwrite somebody else's.
Result<void> SpreadChunk::collect() {
    own_.resize(work_.lanes());
    std::vector<Run> runs;
    for (const FileRange& part : cell_.parts) {
        runs.clear();
        work_.spread.placement->runs(cell_.file, part, runs);
        Bytes reached = part.begin;
        for (const Run& run : runs) SIDESTEP_CHECK(add_run(run, part, reached));
        // A load may read bytes that belong nowhere: padding, or the rest of a block that is looked at.
        if (!work_.loads() && reached != part.end)
            return place_error({ErrorCode::internal, "the placement leaves bytes out", "spread"}, reached);
    }
    merge_adjacent(shared_);
    for (auto& own : own_) merge_adjacent(own);
    std::ranges::sort(sources_);
    sources_.erase(std::unique(sources_.begin(), sources_.end()), sources_.end());
    of_file_ = requests_of(cell_.parts, work_.loads() ? read_along : 0);
    return {};
}

// `reached`: up to where the runs before cover the part.
Result<void> SpreadChunk::add_run(Run run, const FileRange& part, Bytes& reached) {
    const auto& memories = work_.spread.memories;
    if (!work_.loads() && run.memory == Run::every_memory) run.memory = 0;
    const bool all = run.memory == Run::every_memory;
    const auto fits = [&](const Buffer& memory) {
        return run.memory_offset <= memory.size() && run.size <= memory.size() - run.memory_offset;
    };
    const bool inside = run.size > 0 && run.file_offset >= part.begin && run.file_offset <= part.end &&
                        run.size <= part.end - run.file_offset &&
                        (work_.loads() || run.file_offset == reached);
    const bool held = all ? std::ranges::all_of(memories, fits)
                          : run.memory < memories.size() && fits(memories[run.memory]);
    if (!inside || !held)
        return place_error(
            {ErrorCode::internal,
             fmt::format("the placement puts {} bytes of a chunk where they do not belong", run.size),
             "spread"},
            run.file_offset);
    const std::size_t lane = all ? 0 : work_.lane_of(run.memory);
    (all ? shared_ : own_[lane]).push_back(run);
    if (!work_.loads() && is_opened(work_.ends[lane].place)) sources_.push_back(run.memory);
    reached = std::max(reached, run.file_offset + run.size);
    return {};
}

Result<bool> SpreadChunk::step() {
    SIDESTEP_TRY(bool moved, step_parts());
    while (!stopped_ && !ended() && parts_.empty()) {
        const auto next = next_phase();
        if (!next) {
            stop();
            return next.error();
        }
        if (!*next) return moved;
        moved = true;
        SIDESTEP_CHECK(step_parts());
    }
    return moved;
}

Result<bool> SpreadChunk::step_parts() {
    bool moved = false;
    std::optional<Error> failure;
    for (Part& part : parts_) {
        auto stepped = part.runner.step(part.calls);
        if (stepped)
            moved |= *stepped;
        else if (!failure)
            failure = stepped.error();
    }
    if (failure) stop();
    std::erase_if(parts_, [&](Part& part) {
        if (!part.ended() && !(stopped_ && part.runner.idle())) return false;
        count(part);
        return true;
    });
    if (failure) return *failure;
    return moved;
}

// A move has ended, or was given up.
void SpreadChunk::count(Part& part) {
    const bool whole = part.ended();
    const Bytes bytes = part.bytes;
    if (task_ == ChunkTask::check) return;
    work_.stages.end(part.stage, whole ? bytes : 0);
    if (!part.lane) return;
    if (whole) work_.arrived[*part.lane] += bytes;
    if (part.enters) work_.end_share(*part.lane, bytes);
}

void SpreadChunk::stop() {
    stopped_ = true;
    for (Part& part : parts_) part.runner.stop();
}

bool SpreadChunk::idle() const {
    return (!looking_ || looking_->over()) &&
           std::ranges::all_of(parts_, [](const Part& part) { return part.runner.idle(); });
}

void SpreadChunk::add_part(const ReadyHop& mover, const Side& from, const Side& to,
                           const std::vector<Run>& runs, SpreadStages::Number stage,
                           std::optional<std::size_t> lane) {
    if (runs.empty()) return;
    Part& part = parts_.emplace_back(*this, mover, from, to, runs, stage, lane);
    // Of what is opened, that which fails names itself.
    if (lane && !is_opened(work_.ends[*lane].place)) part.where = work_.ends[*lane].place.to_string();
    if (task_ == ChunkTask::move) {
        work_.stages.begin(stage);
        part.enters = work_.loads() && lane && stage != SpreadStages::handing_on;
        if (part.enters) work_.begin_share(*lane, part.bytes);
    }
}

Result<bool> SpreadChunk::next_phase() {
    if (looking_) {
        if (!looking_->over()) return false;
        const Result<void> seen = looking_->result();
        looking_.reset();
        SIDESTEP_CHECK(seen);
    }
    switch (phase_) {
        case Phase::waiting:
            SIDESTEP_CHECK(collect());
            phase_ = Phase::opening;
            break;
        case Phase::opening: {
            SIDESTEP_TRY(const bool open,
                         sources_.empty() ? true : work_.sources().hold(sources_, holds_sources_));
            if (!open) return false;
            phase_ = begin_filling();
            break;
        }
        case Phase::filling: {
            SIDESTEP_TRY(phase_, task_ == ChunkTask::check ? begin_fetching() : begin_looking());
            break;
        }
        case Phase::looking:
            phase_ = begin_emptying();
            break;
        case Phase::emptying:
            phase_ = begin_handing_on();
            break;
        case Phase::fetching: {
            SIDESTEP_TRY(phase_, begin_comparing());
            break;
        }
        case Phase::comparing:
            ++checked_;
            phase_ = begin_fetching();
            break;
        case Phase::handing_on:
        case Phase::ended:
            phase_ = Phase::ended;
            break;
    }
    if (phase_ != Phase::ended) return true;
    if (std::exchange(holds_sources_, false)) work_.sources().let_go(sources_);
    give_slots_back();
    if (task_ == ChunkTask::check) work_.stages.end(SpreadStages::verifying, cell_.bytes());
    return true;
}

SpreadChunk::Phase SpreadChunk::begin_filling() {
    if (task_ == ChunkTask::check) {
        work_.stages.begin(SpreadStages::verifying);
        add_part(work_.reader, file_side(work_.reader), slot_side(), of_file_, SpreadStages::verifying, {});
        return Phase::filling;
    }
    if (work_.loads()) {
        if (work_.way.any_direct()) {
            feed(true);
            of_file_ = requests_of(that_wait(), read_along);
        }
        if (!work_.way.uses_slots()) return Phase::emptying;
        add_part(work_.storage, file_side(work_.storage), slot_side(), of_file_, SpreadStages::filling, {});
        return Phase::filling;
    }
    for (std::size_t lane = 0; lane < own_.size(); ++lane) {
        const ReadyHop& link = work_.links[lane];
        add_part(link, memory_side(lane), slot_side(), own_[lane], SpreadStages::filling, lane);
    }
    return Phase::filling;
}

Result<SpreadChunk::Phase> SpreadChunk::begin_looking() {
    if (!work_.spread.look) return begin_emptying();
    std::vector<std::function<Result<void>()>> tasks;
    const char* data = slot_data(0);
    for (const FileRange& part : cell_.parts)
        for (Bytes from = part.begin; from < part.end;) {
            const Bytes to = std::min(part.end, (from / Spread::block + 1) * Spread::block);
            tasks.push_back([this, from, to, data] {
                return work_.spread.look(cell_.file, from, data + (from - cell_.begin), to - from);
            });
            from = to;
        }
    SIDESTEP_CHECK(look(std::move(tasks)));
    return Phase::looking;
}

// By the workers, while those who drive the spread go on.
Result<void> SpreadChunk::look(std::vector<std::function<Result<void>()>> tasks) {
    for (auto& task : tasks)
        task = [&stopped = work_.stopped, task = std::move(task)] {
            return stopped.load(std::memory_order_relaxed) ? Result<void>() : task();
        };
    backend::Flight& flight = looking_.emplace(work_.owner);
    auto begun = base::run_together(work_.workers, std::move(tasks),
                                    [&flight](Result<void> seen) { flight.end(std::move(seen)); });
    if (!begun) looking_.reset();
    return begun;
}

// Calls take(lane, runs) for the memories that storage reaches, or for the others: what only one gets, and what all get for one
// of each group.
template <typename Take>
void SpreadChunk::entries(bool direct, Take take) {
    if (owners_.empty())
        for (const auto& group : work_.way.groups) owners_.push_back(work_.owner_of(group));
    for (std::size_t lane = 0; lane < own_.size(); ++lane)
        if (work_.way.direct[lane] == direct) take(lane, own_[lane]);
    for (const std::size_t owner : owners_)
        if (work_.way.direct[owner] == direct) take(owner, shared_);
}

// From storage itself, or out of the slot.
void SpreadChunk::feed(bool direct) {
    entries(direct, [&](std::size_t lane, const std::vector<Run>& runs) {
        const ReadyHop& link = work_.links[lane];
        add_part(link, direct ? file_side(link) : slot_side(), memory_side(lane), runs,
                 direct ? SpreadStages::filling : SpreadStages::emptying, lane);
    });
}

// What storage itself brings nowhere.
std::vector<FileRange> SpreadChunk::that_wait() {
    std::vector<FileRange> ranges;
    entries(false, [&](std::size_t, const std::vector<Run>& runs) {
        for (const Run& run : runs) ranges.push_back({run.file_offset, run.file_offset + run.size});
    });
    std::ranges::sort(ranges, {}, &FileRange::begin);
    return ranges;
}

SpreadChunk::Phase SpreadChunk::begin_emptying() {
    if (work_.loads())
        feed(false);
    else
        add_part(work_.storage, slot_side(), file_side(work_.storage), of_file_, SpreadStages::emptying, {});
    return Phase::emptying;
}

// From each owner to the others of its group, where the same bytes lie at the same offset.
SpreadChunk::Phase SpreadChunk::begin_handing_on() {
    give_slots_back();
    const auto& groups = work_.way.groups;
    for (std::size_t group = 0; group < owners_.size(); ++group)
        for (const std::size_t to : groups[group]) {
            const std::size_t from = owners_[group];
            if (to == from) continue;
            const ReadyHop& peer = work_.peers.at({from, to});
            add_part(peer, memory_side(from), memory_side(to), shared_, SpreadStages::handing_on, to);
        }
    return parts_.empty() ? Phase::ended : Phase::handing_on;
}

// The next memory that has bytes of the chunk.
SpreadChunk::Phase SpreadChunk::begin_fetching() {
    for (; checked_ < own_.size(); ++checked_) {
        const ReadyHop& fetcher = work_.fetchers[checked_];
        for (const auto* runs : {&own_[checked_], &shared_})
            add_part(fetcher, memory_side(checked_), slot_side(1), *runs, SpreadStages::verifying, checked_);
        if (!parts_.empty()) return Phase::fetching;
    }
    return Phase::ended;
}

Result<SpreadChunk::Phase> SpreadChunk::begin_comparing() {
    const char* file = slot_data(0);
    const char* memory = slot_data(1);
    const auto compare = [this, file, memory, which = checked_]() -> Result<void> {
        for (const auto* runs : {&own_[which], &shared_})
            for (const Run& run : *runs) {
                const char* const read = file + (run.file_offset - cell_.begin);
                const char* const there = memory + (run.file_offset - cell_.begin);
                if (std::memcmp(read, there, run.size) == 0) continue;
                const auto differs = std::mismatch(read, read + run.size, there).first - read;
                const Place& place =
                    work_.loads() ? work_.ends[which].place : work_.spread.memories[run.memory].place();
                const std::string where = place.to_string();
                return place_error(
                    {ErrorCode::mismatch, fmt::format("{} and the file differ", where), "verify",
                     "copy again; if it happens twice, suspect the memory or the path"},
                    run.file_offset + static_cast<Bytes>(differs), where);
            }
        return {};
    };
    SIDESTEP_CHECK(look({compare}));
    return Phase::comparing;
}

void SpreadChunk::give_slots_back() {
    work_.ring.free.insert(work_.ring.free.end(), slots_.begin(), slots_.end());
    slots_.clear();
}

// What lies at the byte, and in which file, before what was wrong.
Error SpreadChunk::place_error(const Error& error, Bytes offset, const std::string& where) const {
    Error told = error;
    told.message = fmt::format(
        "{} at byte {} of {}{}: {}", work_.spread.placement->name_of(cell_.file, offset), offset,
        work_.spread.files[cell_.file].path, where.empty() ? "" : fmt::format(" ({})", where), error.message);
    return told;
}

}  // namespace sidestep::transfer
