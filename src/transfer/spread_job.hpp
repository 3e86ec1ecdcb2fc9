// Files spread over memories, or gathered from them, as a Movement.
#pragma once

#include <memory>
#include <vector>

#include "transfer/movement.hpp"
#include "transfer/spread_chunk.hpp"
#include "transfer/spread_files.hpp"

namespace sidestep::transfer {

// When all written files are whole, they get their names in the order of Spread::files. A failure or a deadline before the
// first name leaves no file. After the first name the rest follow, even if no caller waits any more. If a name cannot be
// given, the files before it have theirs, and are whole; this one and the later ones have none. So the last file proves that
// all are there.
class SpreadJob final : public Movement {
public:
    SpreadJob(const Machine& machine, Spread spread, const CopyOptions& options);
    ~SpreadJob() override { close(); }

    // Looks at files and memories, plans, takes staging memory and starts the first chunks. Called once,
    // before all else.
    void begin();

private:
    bool go_on(bool may_block) override;
    bool go_on_beside() override;
    void stop() override;
    bool settle(bool may_block) override;
    bool idle() const override;
    bool waits_for_calls() const override { return files_.calling() || (setup_ && setup_->calling()); }
    bool needs_driver() const override;
    std::string where() const override { return "spread"; }
    Result<void> make_final() override;
    Receipt receipt() override;
    void release() override;

    Result<void> prepare();
    void name_stages();
    void start_pass(std::vector<backend::Backend*> backends);
    bool step_chunks();
    bool take_chunks(bool may_block);
    Result<bool> take_chunk();
    bool enough_filling() const;
    bool pass_over(bool may_block);
    void all_arrived();
    void publish_progress();

    const Spread spread_;
    // With the mutex held.
    SpreadFiles files_;
    std::unique_ptr<SpreadSetup> setup_;
    std::unique_ptr<SpreadWork> work_;
    SpreadCursor cursor_;
    std::vector<std::unique_ptr<SpreadChunk>> chunks_;  // in flight
    std::size_t max_chunks_ = 0;
    std::size_t max_filling_ = 0;
};

}  // namespace sidestep::transfer
