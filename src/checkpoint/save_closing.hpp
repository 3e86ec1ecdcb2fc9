// What goes with the files of a save: the manifest and the index.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/closing_file.hpp"
#include "checkpoint/earlier_shards.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/save_plan.hpp"
#include "driver/lock_file.hpp"
#include "transfer/spread.hpp"

namespace sidestep::checkpoint {

// The manifest and the index of one save. look() comes from several threads, the others one after the other.
class SaveClosing final : public transfer::SpreadClosing {
public:
    SaveClosing(const SavePlan& plan, const SaveOptions& options);

    bool wants_checksums() const { return !manifest_path_.empty(); }

    // Keeps the checksum of a block: as transfer::Spread::Look.
    Result<void> look(std::size_t file, Bytes offset, const void* data, Bytes size);
    // Where several files are saved, their folder has to be there.
    Result<void> begin() override;
    bool wants_sync() const override { return sync_; }
    // From here on nobody takes old and new files for one checkpoint: the index leads to the old ones, whole, until it leads to
    // the new ones. Undone where it fails, as where another save is at this in the same folder for 2 s.
    Result<void> before_names() override;
    Result<void> without_names() override;
    // Others may save now.
    void give_up() override { turn_.reset(); }
    Result<std::vector<std::string>> after_names() override;

private:
    bool wanted() const { return !index_path_.empty() || !manifest_path_.empty() || !stale_index_.empty(); }
    bool replaces() const;
    Result<void> take_turn();
    Result<std::optional<std::string>> meanwhile();
    Result<void> set_aside();
    Result<std::string> remove_stale_index() const;

    const std::string first_;   // file
    const std::string folder_;  // of the files
    std::string index_path_;
    std::string index_text_;
    std::string manifest_path_;
    // Of an earlier save, beside the model.safetensors that is saved: read first, it would hide the new file.
    std::string stale_index_;
    bool sync_;
    const bool sync_replaced_;
    Manifest manifest_;
    ClosingFile index_file_;
    ClosingFile manifest_file_;
    EarlierShards earlier_;
    std::vector<std::string> names_;  // of the new files
    std::unique_ptr<driver::LockFile> turn_;
};

}  // namespace sidestep::checkpoint
