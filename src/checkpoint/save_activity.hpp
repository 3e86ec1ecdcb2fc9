// A save as its caller sees it: the files, and after them the manifest and the index.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/closing_file.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/save_plan.hpp"
#include "driver/folder_lock.hpp"
#include "transfer/activity.hpp"

namespace sidestep::checkpoint {

// The manifest and the index of one save. look() comes from several threads, the others one after the other.
class SaveClosing {
public:
    SaveClosing(const SavePlan& plan, bool sync);

    bool wanted() const { return !index_path_.empty() || !manifest_path_.empty() || !stale_index_.empty(); }
    bool wants_checksums() const { return !manifest_path_.empty(); }

    // Keeps the checksum of a block: as transfer::Spread::Look.
    Result<void> look(std::size_t file, Bytes offset, const void* data, Bytes size);
    // When all files are whole and none has its name: from here on nobody takes old and new files for one
    // checkpoint. Undone where it fails, as where another save is at this in the same folder: two at once could leave
    // some files of each under an index that takes them all.
    Result<void> before_names();
    // Undoes before_names(), where the first file did not get its name.
    Result<void> without_names();
    // Where files did not get their names: others may save now.
    void give_up() { turn_.reset(); }
    // When all have. Answers with notes.
    Result<std::vector<std::string>> after_names();

private:
    Result<void> take_turn();
    Result<void> set_aside();
    Result<std::string> remove_stale_index() const;

    const std::string folder_;  // of the files
    std::string index_path_;
    std::string index_text_;
    std::string manifest_path_;
    // Of an earlier save, beside the model.safetensors that is saved: read first, it would hide the new file.
    std::string stale_index_;
    bool sync_ = false;
    Manifest manifest_;
    ClosingFile index_file_;
    ClosingFile manifest_file_;
    std::unique_ptr<driver::FolderLock> turn_;
};

// Ends when the files have their names and then the manifest and the index theirs.
class SaveActivity final : public transfer::Activity {
public:
    SaveActivity(std::shared_ptr<transfer::Activity> files, std::shared_ptr<SaveClosing> closing);

    bool step(bool may_block) override;
    bool try_step(bool may_block) override;

private:
    bool follow(bool moved, bool may_block);
    void close();

    std::mutex mutex_;  // guards what follows
    const std::shared_ptr<transfer::Activity> files_;
    const std::shared_ptr<SaveClosing> closing_;
};

}  // namespace sidestep::checkpoint
