// What the chunks of one spread share: engines, memories, slots, and what came of the bytes.
//
// A lane is what the route calls so: one for each memory that files are spread over, and one for each place,
// and kind of memory there, that files are written from, however many memories lie there. All files of one machine
// that others are written from are one lane.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sidestep/stage.hpp>
#include "base/blocking_calls.hpp"
#include "base/try.hpp"
#include "base/workers.hpp"
#include "route/fan_out.hpp"
#include "transfer/movement.hpp"
#include "transfer/spread_files.hpp"

namespace sidestep::transfer {

// Which stage of a spread is at work, and which one holds the others up. Seconds in which something of a stage is in flight
// count as busy; those in which nothing else is, as its limit. One thread at a time.
class SpreadStages {
public:
    // What fills slots, or memories that storage reaches itself; what empties slots; GPU to GPU; verification.
    enum Number : std::size_t { filling, emptying, handing_on, verifying };

    // One without a name is not reported.
    void name(Number stage, std::string name) { stages_[stage].name = std::move(name); }
    void begin(Number stage) {
        tick();
        ++in_flight_[stage];
    }
    // What began has ended; that many bytes of it arrived.
    void end(Number stage, Bytes bytes) {
        tick();
        --in_flight_[stage];
        stages_[stage].bytes += bytes;
    }
    std::vector<Stage> stages() const {
        std::vector<Stage> named(stages_.begin(), stages_.end());
        std::erase_if(named, [](const Stage& stage) { return stage.name.empty(); });
        return named;
    }

private:
    using Clock = std::chrono::steady_clock;
    void tick() {
        const auto now = Clock::now();
        const double seconds = std::chrono::duration<double>(now - std::exchange(last_, now)).count();
        const auto busy = std::ranges::count_if(in_flight_, [](int count) { return count > 0; });
        for (std::size_t i = 0; i < stages_.size(); ++i) {
            if (in_flight_[i] == 0) continue;
            stages_[i].busy_seconds += seconds;
            if (busy == 1) stages_[i].limit_seconds += seconds;
        }
    }

    std::array<Stage, 4> stages_;
    std::array<int, 4> in_flight_{};
    Clock::time_point last_ = Clock::now();
};

// The memories of a spread, and its ring of slots, as they are attached.
struct AttachedMemory {
    // A few for each.
    struct One {
        backend::Backend* backend = nullptr;
        backend::Access access = backend::Access::read;
        std::unique_ptr<backend::Registration> registration;
    };

    // Null where it is not attached so.
    backend::Registration* find(std::size_t which, const backend::Backend* backend,
                                backend::Access access) const {
        for (const One& one : all[which])
            if (one.backend == backend && one.access == access) return one.registration.get();
        return nullptr;
    }

    std::vector<std::vector<One>> all;  // by memory; the ring comes after them
};

// The files, and the published memory of nodes, that a spread to files reads. Each is opened when a chunk comes to it, and
// stays open until others need its place: a process has few descriptors, and a save may read from more files than that. One
// thread at a time.
class SpreadSources {
public:
    // More only where one chunk needs them.
    static constexpr std::size_t max_open = 64;

    using Open = std::vector<AttachedMemory::One>;
    // May block; called on another thread.
    using Attach = std::function<Result<Open>(std::size_t memory)>;

    // What is opened is found in `attached`; what is there before needs no opening. Both outlive this.
    SpreadSources(base::BlockingCalls& calls, AttachedMemory& attached, Attach attach)
        : calls_(calls), attached_(attached), attach_(std::move(attach)), holders_(attached.all.size()) {}

    // Whether these are open. While they are not they are being opened, or wait until others are let go. `held` is the
    // caller's, false at first; once it is true they stay until let_go().
    Result<bool> hold(const std::vector<std::size_t>& memories, bool& held) {
        if (call_.running()) return false;
        if (const auto outcome = call_.take()) {
            SIDESTEP_CHECK(*outcome);
            for (auto& [memory, open] : std::exchange(new_, {})) {
                attached_.all[memory] = std::move(open);
                order_.push_back(memory);
            }
        }
        std::vector<std::size_t> missing;
        std::ranges::copy_if(memories, std::back_inserter(missing),
                             [this](std::size_t memory) { return attached_.all[memory].empty(); });
        if (!held) {
            // Held at once, lest those that are open already make room.
            for (const std::size_t memory : memories) ++holders_[memory];
            close_others(missing.size());
            held = order_.size() + missing.size() <= std::max(max_open, memories.size());
            if (!held) let_go(memories);
        }
        if (!held || missing.empty()) return held;
        const auto open = [this, missing = std::move(missing)]() -> Result<void> {
            closed_.clear();
            for (const std::size_t memory : missing) {
                SIDESTEP_TRY(Open opened, attach_(memory));
                new_.emplace_back(memory, std::move(opened));
            }
            return {};
        };
        call_.make(&calls_, open, usual_opening);
        if (call_.running()) return false;
        return hold(memories, held);  // an error too
    }

    void let_go(const std::vector<std::size_t>& memories) {
        for (const std::size_t memory : memories) --holders_[memory];
    }

    // This object has to stay meanwhile.
    bool calling() const { return call_.running(); }

private:
    // What opens sooner is waited for: to hand a call over to another thread takes about as long.
    static constexpr std::chrono::microseconds usual_opening{100};

    // Those that nobody holds, the first of them first, until so many more may be opened.
    void close_others(std::size_t wanted) {
        std::size_t open = order_.size();
        std::erase_if(order_, [&](std::size_t memory) {
            if (open + wanted <= max_open || holders_[memory] > 0) return false;
            --open;
            closed_.push_back(std::exchange(attached_.all[memory], {}));
            return true;
        });
    }

    base::BlockingCalls& calls_;
    AttachedMemory& attached_;
    const Attach attach_;
    std::vector<std::size_t> holders_;  // by memory
    std::vector<std::size_t> order_;    // of those that were opened, the first of them first
    std::vector<Open> closed_;          // to be destroyed by the next call; while it is running, its
    std::vector<std::pair<std::size_t, Open>> new_;  // the same of what it opened
    base::BlockingCall call_;
};

// One thread at a time; what the workers do is theirs.
class SpreadWork {
public:
    // All outlive this. `of_pieces`: their owner, and that of what the workers do.
    SpreadWork(Machine& machine, const Spread& moved, const CopyOptions& options,
               const SpreadFiles& its_files, backend::PieceOwner& of_pieces)
        : spread(moved), files(its_files), owner(of_pieces), machine_(machine), options_(options) {}
    // Called once, before all else. Looks at the memories, plans, takes staging memory and attaches. May block.
    Result<void> prepare();

    bool loads() const { return spread.direction == SpreadDirection::to_memory; }
    std::size_t lanes() const { return ends.size(); }
    std::size_t lane_of(std::size_t memory) const { return lane_of_[memory]; }
    // Who moves bytes between the files and slots or memories.
    std::vector<backend::Backend*> file_backends() const;
    // To files: those that are read for them, and memory.
    SpreadSources& sources() { return *reading_; }
    const AttachedMemory& attached() const { return attached_; }
    // It is opening some: this object has to stay meanwhile.
    bool calling() const { return reading_ && reading_->calling(); }
    // To files: whether what is read for them is what it was in the beginning. May block.
    Result<void> check_sources() const;

    // Of a group, the place with the least bytes on the way to it; of equal ones the one that carried least. One that storage
    // reaches, where there is one.
    std::size_t owner_of(const std::vector<std::size_t>& group) const;
    void begin_share(std::size_t lane, Bytes part) { shares_[lane].outstanding += part; }
    void end_share(std::size_t lane, Bytes part) {
        shares_[lane].outstanding -= part;
        shares_[lane].carried += part;
    }

    const Spread& spread;
    const SpreadFiles& files;
    backend::PieceOwner& owner;
    std::atomic<bool> stopped = false;  // nothing has to be looked at any more
    // Look at bytes while those who drive the spread go on.
    base::Workers workers{{std::min<std::size_t>(usable_processors(), 8)}, "spread"};
    SpreadStages stages;
    std::vector<Bytes> arrived;  // by lane: that reached it, or left it

    // Constant once prepared.
    std::vector<route::End> ends;  // by lane
    struct {
        Bytes files = 0;
        Bytes memories = 0;       // that arrive in all memories, or leave them
        double shared = 0;        // part of the files' bytes that every memory gets
        std::vector<double> own;  // by lane: part that it alone gets or gives
    } bytes;
    route::FanOut way;
    ReadyHop storage;  // between file and slot
    // By lane: between slot and memory, in the direction of the spread; where storage reaches the memory, between file and it.
    std::vector<ReadyHop> links;
    std::map<std::pair<std::size_t, std::size_t>, ReadyHop> peers;  // from, to: lanes of one group
    ReadyHop reader;                                                // of verification: file to slot
    std::vector<ReadyHop> fetchers;                                 // by lane: memory to slot
    Bytes chunk = 0;
    SlotRing ring;

private:
    struct Share {
        Bytes outstanding = 0;
        Bytes carried = 0;
    };

    Result<void> look_at_memories();
    Result<void> check_memory(const Buffer& memory) const;
    Result<void> check_targets() const;
    void measure();
    Result<void> plan();
    Result<void> plan_verification(const std::vector<backend::Offer>& offers);
    Result<void> make_ring();
    Result<void> attach_all();
    backend::AttachOptions options_for(backend::Access access, std::size_t which) const;
    Result<SpreadSources::Open> open_source(std::size_t memory) const;
    Result<void> attach(const ReadyHop& mover, backend::Access access, std::size_t which);

    Machine& machine_;
    const CopyOptions options_;
    std::vector<std::size_t> lane_of_;                     // by memory
    std::map<std::size_t, backend::Description> sources_;  // by memory: files that are read
    std::vector<HostLinkTraffic::Use> traffic_;
    AttachedMemory attached_;                 // after the ring: gone before it
    std::unique_ptr<SpreadSources> reading_;  // of to_file
    std::vector<Share> shares_;
};

}  // namespace sidestep::transfer
