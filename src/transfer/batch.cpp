// Many copies as one: groups of them in single calls, the rest as copies of their own, side by side.
#include <algorithm>
#include <deque>

#include <fmt/format.h>

#include "base/try.hpp"
#include "transfer/batch_plan.hpp"
#include "transfer/ends.hpp"
#include "transfer/lane.hpp"

namespace sidestep::transfer {
namespace {

// Of one call, with parts_a_call: cancellation and the deadline are looked at in between. On a caller's stream everything is
// enqueued at once anyway.
constexpr Bytes bytes_a_call = Bytes{512} << 20;
constexpr std::size_t pieces_a_stream_call = 65280;
// Of one group in flight: the next is ready when one ends.
constexpr std::size_t calls_in_flight = 4;
// The same for relayed calls, which the driver has to pass on, and the most that one of them holds.
// docs/lab-book.md has what other values did.
constexpr std::size_t relayed_calls_in_flight = 16;
constexpr Bytes relayed_a_call = Bytes{4} << 20;
// Copies of their own that run side by side.
constexpr std::size_t singles_in_flight = 16;
constexpr std::size_t max_ways = 8;  // that the notes tell of

Error at_position(Error error, std::size_t first, std::size_t last) {
    error.message = first == last
                        ? fmt::format("copy {} of the batch: {}", first, error.message)
                        : fmt::format("copies {} to {} of the batch: {}", first, last, error.message);
    return error;
}

std::string way_of(const Place& from, const Place& to) {
    const auto name = [](const Place& place) { return place.is_file() ? "file" : place.to_string(); };
    return fmt::format("{} -> {}", name(from), name(to));
}

// Whether two routes between places of the same names carry bytes the same way.
bool same_path(const Route& a, const Route& b) {
    const auto same_hop = [](const Hop& x, const Hop& y) {
        return x.backend == y.backend && x.engine == y.engine && x.to.kind() == y.to.kind();
    };
    return std::equal(
        a.lanes.begin(), a.lanes.end(), b.lanes.begin(), b.lanes.end(), [&](const Lane& x, const Lane& y) {
            return std::equal(x.hops.begin(), x.hops.end(), y.hops.begin(), y.hops.end(), same_hop);
        });
}

// Of a Movement's states it has moving, draining and ended: its copies open, verify and commit by themselves.
class BatchJob final : public Movement {
public:
    BatchJob(Machine& machine, const CopyOptions& options, void* stream)
        : Movement(machine, options, stream, {"the batch", "copied"}) {}
    ~BatchJob() override { close(); }

    // Sorts the copies and starts the first of them.
    void begin(const std::vector<BatchCopy>& copies) {
        std::lock_guard lock(mutex_);
        const Result<void> prepared = prepare(copies);
        starts_copies_ = !waiting_.empty();
        begin_moving(prepared, true);
        needs_driving_ = !all_started() || !running_.empty();
    }

    bool starts_copies() const override { return starts_copies_; }

private:
    // A group at work.
    struct Bulk final : LaneParts {
        Bulk(BatchGroup of, std::vector<backend::Piece>& room) : group(std::move(of)), scratch(room) {}
        std::span<const backend::Piece> pieces(Cursor::Span call, const backend::Piece& all) override {
            scratch.clear();
            Bytes at = 0;
            for (std::size_t i = call.offset; at < call.size; at += group.pieces[i++].size) {
                const BatchPiece& copy = group.pieces[i];
                scratch.push_back({all.from ? all.from : sources[copy.from_range].get(),
                                   all.from ? all.from_offset + at : copy.from_offset,
                                   all.to ? all.to : targets[copy.to_range].get(),
                                   all.to ? all.to_offset + at : copy.to_offset, copy.size, all.capability,
                                   all.stream});
            }
            return scratch;
        }
        Error told(Error error, Cursor::Span call) const override {
            const auto parts = parts_of(std::span(group.pieces), call);
            return at_position(std::move(error), parts.front().position, parts.back().position);
        }

        const BatchGroup group;
        std::vector<backend::Piece>& scratch;
        std::vector<std::unique_ptr<backend::Registration>> sources;  // by range; null: no piece needs it
        std::vector<std::unique_ptr<backend::Registration>> targets;
        std::unique_ptr<LaneRunner> lane;
        Cursor calls;                 // that were not started
        std::optional<Error> lost;    // for which there may be a detour
        std::size_t handed_over = 0;  // of its copies, to others
    };
    // A copy of its own.
    struct Single {
        std::size_t position = 0;
        Buffer from;
        Buffer to;
        std::shared_ptr<Movement> job;  // null before it is begun
        bool counted = false;           // its result was looked at
    };
    // What went one way.
    struct Carried {
        std::string way;
        std::shared_ptr<const Route> route;
        std::vector<Bytes> lane_bytes;
        Bytes bytes = 0;
        std::size_t copies = 0;
    };

    Result<void> prepare(const std::vector<BatchCopy>& copies) {
        if (stream_ != nullptr && options_.verify)
            return Error{ErrorCode::unsupported, "a batch on a stream is not verified", "stream",
                         "verify it later, or copy without a stream"};
        if (stream_ != nullptr) SIDESTEP_CHECK(place_.join(machine_.streams, stream_));
        BatchPlan plan = plan_batch(machine_, options_, stream_ != nullptr, copies);
        total_.store(plan.bytes, std::memory_order_relaxed);
        return add(std::move(plan), copies);
    }

    // `position_of`: in the batch; empty: as they come.
    Result<void> add(BatchPlan plan, const std::vector<BatchCopy>& copies,
                     const std::vector<std::size_t>& position_of = {}) {
        const auto position = [&](std::size_t i) { return position_of.empty() ? i : position_of[i]; };
        for (const std::size_t single : plan.singles) {
            const BatchCopy& copy = copies[single];
            if (stream_ != nullptr && copy.from->size() > 0) return why_not_on_stream(copy, single);
            waiting_.push_back({position(single), *copy.from, *copy.to, nullptr, false});
        }
        // All memory is attached, and errors found, before a byte moves.
        for (BatchGroup& group : plan.groups) {
            if (!position_of.empty())
                for (BatchPiece& piece : group.pieces)
                    piece.position = static_cast<std::uint32_t>(position(piece.position));
            auto bulk = std::make_unique<Bulk>(std::move(group), scratch_);
            SIDESTEP_CHECK(attach(*bulk));
            SIDESTEP_CHECK(add_lane(*bulk));
            bulks_.push_back(std::move(bulk));
        }
        return {};
    }

    // Only ranges with pieces: those of another group may be out of this backend's reach.
    Result<void> attach(Bulk& bulk) {
        const BatchGroup& group = bulk.group;
        bulk.sources.resize(group.from_ranges->size());
        bulk.targets.resize(group.to_ranges->size());
        const auto add = [](auto& end, const ReadyHop& hop, const BatchRange& range,
                            backend::Access access) -> Result<void> {
            if (end) return {};
            backend::AttachOptions options;
            options.access = access;
            SIDESTEP_TRY(end, hop.backend->attach(range.memory, options));
            return {};
        };
        for (const BatchPiece& piece : group.pieces) {
            auto& source = bulk.sources[piece.from_range];
            auto& target = bulk.targets[piece.to_range];
            if (source && target) continue;  // of nearly all pieces
            const BatchRange& from = (*group.from_ranges)[piece.from_range];
            auto added = add(source, group.first(), from, backend::Access::read);
            if (added)
                added = add(target, group.last(), (*group.to_ranges)[piece.to_range], backend::Access::write);
            if (!added) return at_position(added.error(), piece.position, piece.position);
        }
        return {};
    }

    // On a stream all is enqueued at once: calls do not wait for one another.
    Result<void> add_lane(Bulk& bulk) {
        const BatchGroup& group = bulk.group;
        LaneSetup setup;
        setup.owner = this;
        setup.hops = group.plan->lanes[0];
        setup.parts = &bulk;
        setup.chunk = stream_ != nullptr ? Buffer::whole : bytes_a_call;
        setup.depth = stream_ != nullptr ? group.pieces.size() : calls_in_flight;
        if (stream_ == nullptr) setup.max_new = 1;
        setup.stream = stream_;
        setup.yields_to = &lost_;
        if (group.relayed()) {
            setup.chunk =
                std::clamp(options_.max_staging / relayed_calls_in_flight, largest_relayed, relayed_a_call);
            setup.staging =
                std::min({options_.max_staging, group.ends.bytes, relayed_calls_in_flight * setup.chunk});
        }
        bulk.calls = cursor_of_parts(std::span(group.pieces),
                                     stream_ != nullptr ? pieces_a_stream_call : parts_a_call, setup.chunk);
        SIDESTEP_TRY(bulk.lane, LaneRunner::create(std::move(setup), machine_.pool));
        return {};
    }

    Error why_not_on_stream(const BatchCopy& copy, std::size_t position) const {
        auto ends = resolve_ends(machine_.topology, machine_.registry, *copy.from, *copy.to, machine_.shared,
                                 options_.deadline);
        if (!ends) return at_position(ends.error(), position, position);
        return at_position({ErrorCode::unsupported, "no single hop on a stream carries it",
                            way_of(copy.from->place(), copy.to->place()),
                            "leave it out of the batch and give it to cuda::copy"},
                           position, position);
    }

    std::string where() const override { return "copy_batch"; }
    bool go_on(bool may_block) override {
        bool moved = run_calls();
        if (moved && bulks_.size() == 1 && !bulks_[0]->group.relayed())
            expect(bulks_[0]->group.plan->route, bulks_[0]->lane->oldest());
        moved |= run_singles(may_block);
        publish_progress();
        if (state_ != State::moving || !idle()) return moved;
        if (lost_ > 0) {
            open_again([this] { return detour(); });
            return true;
        }
        if (!all_started()) return moved;
        if (auto before = place_.failure_before())
            fail(std::move(*before));
        else
            end();
        return true;
    }

    void stop() override {
        for (Single& single : running_) single.job->cancel();
        waiting_.clear();
        for (auto& bulk : bulks_) bulk->lane->stop();
    }

    bool idle() const override {
        return running_.empty() &&
               std::ranges::all_of(bulks_, [](const auto& bulk) { return bulk->lane->idle(); });
    }
    // Copies of their own watch for stalls themselves, and a stream comes to the batch when it does.
    bool may_stall() const override { return running_.empty() && stream_ == nullptr; }
    Result<void> make_final() override { return {}; }
    // The route is that which carried the most bytes; the notes list the others.
    Receipt receipt() override {
        for (const auto& bulk : bulks_) {
            const BatchGroup& group = bulk->group;
            if (group.pieces.size() == bulk->handed_over) continue;
            Receipt part;
            part.bytes = bulk->lane->arrived();
            part.lane_bytes = {part.bytes};
            part.route = std::shared_ptr<const Route>(group.plan, &group.plan->route);
            count(way_of(group.ends.from.place(), group.ends.to.place()), part,
                  group.pieces.size() - bulk->handed_over);
            for (const auto* side : {&bulk->sources, &bulk->targets})
                for (const auto& registration : *side)
                    if (registration)
                        for (std::string& text : registration->notes()) note(std::move(text));
        }
        receipt_.bytes = arrived();
        receipt_.seconds = seconds_since_start();
        receipt_.verified = options_.verify && singles_.verified;
        if (singles_.verify_seconds > 0) {
            // Copies and their verification run side by side: the time is divided as theirs is in all.
            receipt_.verify_seconds =
                receipt_.seconds * singles_.verify_seconds / (singles_.seconds + singles_.verify_seconds);
            receipt_.seconds -= receipt_.verify_seconds;
        }
        receipt_.route = std::make_shared<const Route>();  // of a batch of nothing
        std::ranges::stable_sort(carried_, std::greater(), &Carried::bytes);
        for (std::size_t i = 0; i < carried_.size(); ++i) {
            const Carried& carried = carried_[i];
            if (i == 0) {
                receipt_.route = carried.route;
                receipt_.lane_bytes = carried.lane_bytes;
            } else if (i < max_ways) {
                receipt_.notes.push_back(fmt::format("besides the route: {} cop{}, {}, {}", carried.copies,
                                                     carried.copies == 1 ? "y" : "ies",
                                                     format_bytes(carried.bytes), carried.way));
            }
        }
        if (carried_.size() > max_ways)
            receipt_.notes.push_back(fmt::format("and {} other ways", carried_.size() - max_ways));
        return std::move(receipt_);
    }

    void release() override { bulks_.clear(); }

    // A call for each group in turn, so that all ways are busy. The bound on the calls of one step lets waiters,
    // a cancellation and the deadline in where calls end on the spot.
    bool run_calls() {
        bool moved = false;
        for (std::size_t round = 0; round < calls_in_flight; ++round) {
            bool any = false;
            for (auto& bulk : bulks_) {
                const auto stepped = bulk->lane->step(bulk->calls);
                if (!stepped) lose(*bulk, stepped.error());
                any |= !stepped || *stepped;
            }
            if (!any) break;
            moved = true;
        }
        return moved;
    }

    // What a copy of its own would do, where it may.
    void lose(Bulk& bulk, Error error) {
        if (!may_detour(bulk.group.ends) || bulk.group.relayed()) return fail(std::move(error));
        if (bulk.lost) return;
        bulk.lost = std::move(error);
        ++lost_;
    }

    // Once nothing is in flight.
    Result<void> detour() {
        std::deque<Buffer> ends;
        std::vector<BatchCopy> copies;
        std::vector<std::size_t> positions;
        for (const auto& bulk : bulks_) {
            if (!bulk->lost) continue;
            const BatchGroup& group = bulk->group;
            if (against_way(group.ends, bulk->lane->arrived()).empty()) return *bulk->lost;
            while (!bulk->calls.empty())
                for (const BatchPiece& piece :
                     parts_of(std::span(group.pieces), bulk->calls.take(Buffer::whole))) {
                    const Buffer& from = ends.emplace_back(
                        (*group.from_ranges)[piece.from_range].memory.slice(piece.from_offset, piece.size));
                    const Buffer& to = ends.emplace_back(
                        (*group.to_ranges)[piece.to_range].memory.slice(piece.to_offset, piece.size));
                    copies.push_back({&from, &to});
                    positions.push_back(piece.position);
                    ++bulk->handed_over;
                }
        }
        lost_ = 0;
        return add(plan_batch(machine_, options_, stream_ != nullptr, copies), copies, positions);
    }

    // Copies of their own: begins some where it may block, steps those that run, and counts those that ended.
    bool run_singles(bool may_block) {
        bool moved = false;
        while (may_block && state_ == State::moving && lost_ == 0 && !waiting_.empty() &&
               running_.size() < singles_in_flight) {
            Single single = std::move(waiting_.front());
            waiting_.pop_front();
            // Its deadline passes after that of the batch.
            single.job = begin_copy(machine_, single.from, single.to, options_, nullptr);
            running_.push_back(std::move(single));
            moved = true;
        }
        // Told afterwards: fail() goes through all that run, of which some are on the move until then.
        std::optional<Error> failed;
        std::erase_if(running_, [&](Single& single) {
            moved |= single.job->step(may_block);
            wake_no_later(single.job->wake_by());
            return look_at(single, failed);
        });
        // Where one that has told of its end is still here, it hangs, and has been waited for.
        if (failed) fail(std::move(*failed), std::ranges::any_of(running_, &Single::counted));
        return moved;
    }

    // Whether nothing of the copy is in flight any more. The first failure of a pass goes to `failed`.
    bool look_at(Single& single, std::optional<Error>& failed) {
        if (!single.job->finished()) return false;
        if (!single.counted) {
            single.counted = true;
            const auto& result = single.job->result();
            if (result) {
                singles_.bytes += result->bytes;
                singles_.verified &= result->verified;
                singles_.seconds += result->seconds;
                singles_.verify_seconds += result->verify_seconds;
                receipt_.storage += result->storage;
                count(way_of(single.from.place(), single.to.place()), *result, 1);
            } else if (!failed) {
                failed = at_position(result.error(), single.position, single.position);
            }
        }
        return single.job->drained();
    }

    void count(std::string way, const Receipt& receipt, std::size_t copies) {
        for (const std::string& text : receipt.notes) note(text);
        for (const std::string& text : receipt.lane_failures)
            if (!text.empty()) note(fmt::format("a lane failed: {}", text));
        auto found = std::ranges::find_if(carried_, [&](const Carried& known) {
            return known.way == way && known.lane_bytes.size() == receipt.lane_bytes.size() &&
                   same_path(*known.route, *receipt.route);
        });
        if (found == carried_.end())
            found = carried_.insert(carried_.end(), {std::move(way), receipt.route,
                                                     std::vector<Bytes>(receipt.lane_bytes.size()), 0, 0});
        for (std::size_t lane = 0; lane < receipt.lane_bytes.size(); ++lane)
            found->lane_bytes[lane] += receipt.lane_bytes[lane];
        found->bytes += receipt.bytes;
        found->copies += copies;
    }

    Bytes arrived() const {
        Bytes bytes = singles_.bytes;
        for (const auto& bulk : bulks_) bytes += bulk->lane->arrived();
        return bytes;
    }

    void publish_progress() {
        Bytes done = arrived();
        for (const Single& single : running_)
            if (!single.counted) done += single.job->bytes_done();
        done_.store(done, std::memory_order_relaxed);
    }

    bool all_started() const {
        return waiting_.empty() && std::ranges::all_of(bulks_, [](const auto& bulk) {
                   return bulk->calls.empty() && (!bulk->group.relayed() || bulk->lane->idle());
               });
    }

    bool starts_copies_ = false;  // constant after begin()
    // With the mutex held.
    std::atomic<int> lost_{0};  // groups, which wait until nothing is in flight; meanwhile nothing is begun
    std::vector<backend::Piece> scratch_;  // of the call that is made
    std::vector<std::unique_ptr<Bulk>> bulks_;
    std::deque<Single> waiting_;
    std::vector<Single> running_;
    std::vector<Carried> carried_;
    Receipt singles_{.verified = true};  // of the copies of their own, summed
};

}  // namespace

std::shared_ptr<Movement> begin_batch(Machine& machine, const std::vector<BatchCopy>& copies,
                                      const CopyOptions& options, void* stream) {
    auto batch = std::make_shared<BatchJob>(machine, options, stream);
    batch->begin(copies);
    return batch;
}

}  // namespace sidestep::transfer
