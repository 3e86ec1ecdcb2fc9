// Files spread over memories, or gathered from them, from submission to receipt.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transfer/activity.hpp"
#include "transfer/spread_chunk.hpp"
#include "transfer/spread_files.hpp"

namespace sidestep::transfer {

// The states, and what leads from one to the next:
//
//   from        to          when
//   moving      verifying   every byte has arrived, and verification was asked for
//   moving      committing  every byte has arrived
//   verifying   committing  every byte was read again from both sides and is equal
//   committing  ended       every written file has its name
//   any         draining    a piece failed, cancel, deadline or stall
//   draining    ended       nothing is in flight any more, or the drain limit has passed
//
// Written files get their names in the order of Spread::files once all are whole. Before the first one has
// its name a failure or cancel leaves none; from then on cancel and deadline come too late. Where a name
// cannot be given, the files before it have theirs, whole, and this one and those after it do not: the last
// file is the one to look for.
class SpreadJob final : public Activity {
public:
    SpreadJob(const Machine& machine, Spread spread, const CopyOptions& options);
    ~SpreadJob() override;

    // Looks at files and memories, plans, takes staging memory and starts the first chunks. Called once,
    // before all else.
    void begin();

    bool step(bool may_block) override;
    bool try_step(bool may_block) override;
    void assist() override;
    void wait_for_calls() override { files_.wait_for_opening(); }

private:
    using Clock = std::chrono::steady_clock;
    enum class State { moving, verifying, committing, draining, ended };

    Result<void> prepare();
    void name_stages();
    void start_pass(backend::Backend& backend);
    bool advance(bool may_block);
    bool expects_more_soon() const;
    bool step_chunks();
    bool take_chunks(bool may_block);
    Result<bool> take_chunk();
    bool enough_filling() const;
    bool pass_over(bool may_block);
    void all_arrived();
    Result<void> before_names();
    bool commit();
    bool drain();
    void watch(Clock::time_point now);
    void fail(Error error);
    void end();
    void publish_progress();
    bool idle() const;
    bool may_go() const { return idle() && !files_.opening(); }
    double seconds_since_start() const;

    const Machine machine_;
    const Spread spread_;
    const CopyOptions options_;
    const Clock::time_point started_ = Clock::now();

    std::mutex mutex_;  // guards everything below that is not atomic
    State state_ = State::moving;
    SpreadFiles files_;
    std::unique_ptr<SpreadSetup> setup_;
    std::unique_ptr<SpreadWork> work_;
    SpreadCursor cursor_;
    std::vector<std::unique_ptr<SpreadChunk>> chunks_;  // in flight
    std::size_t max_chunks_ = 0;
    std::size_t max_filling_ = 0;
    const bool spare_processors_;
    bool asked_ = false;  // Spread::before_names
    std::optional<Error> failure_;
    Receipt receipt_;
    Clock::time_point last_move_ = started_;
    Clock::time_point drain_since_;
    ProgressList::Entry progress_entry_;
};

}  // namespace sidestep::transfer
