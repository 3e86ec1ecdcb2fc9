#include "checkpoint/save_activity.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/files.hpp"

namespace sidestep::checkpoint {

SaveClosing::SaveClosing(const SavePlan& plan, bool sync)
    : index_path_(plan.index_path),
      index_text_(plan.index_text),
      manifest_path_(plan.manifest_path),
      sync_(sync) {
    if (!wants_checksums()) return;
    manifest_.block = transfer::Spread::block;
    for (std::size_t file = 0; file < plan.spread.files.size(); ++file) {
        const Bytes size = plan.file_sizes[file];
        manifest_.files.push_back({driver::split_path(plan.spread.files[file].path).name, size,
                                   std::vector<std::uint64_t>(block_count(size, manifest_.block))});
    }
}

Result<void> SaveClosing::look(std::size_t file, Bytes offset, const void* data, Bytes size) {
    Manifest::File& sums = manifest_.files[file];
    const Bytes block = offset / manifest_.block;
    if (offset % manifest_.block != 0 || (size != manifest_.block && offset + size != sums.size))
        return Error{
            ErrorCode::internal, fmt::format("{} bytes at {} are no block", size, offset), sums.name, {}};
    sums.blocks[block] = hash_block(data, size);
    return {};
}

Result<void> SaveClosing::before_names() {
    if (wants_checksums()) SIDESTEP_CHECK(manifest_file_.prepare(manifest_path_, to_json(manifest_)));
    if (!index_path_.empty()) SIDESTEP_CHECK(index_file_.prepare(index_path_, index_text_));
    SIDESTEP_CHECK(manifest_file_.remove_earlier());
    return index_file_.remove_earlier();
}

Result<void> SaveClosing::after_names() {
    SIDESTEP_CHECK(manifest_file_.commit(sync_));
    return index_file_.commit(sync_);
}

SaveActivity::SaveActivity(std::shared_ptr<transfer::Activity> files, std::shared_ptr<SaveClosing> closing)
    : files_(std::move(files)), closing_(std::move(closing)) {
    std::lock_guard lock(mutex_);
    follow(false, true);
}

bool SaveActivity::step(bool may_block) {
    std::lock_guard lock(mutex_);
    if (cancelled()) files_->cancel();
    return follow(files_->step(may_block), may_block);
}

bool SaveActivity::try_step(bool may_block) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    if (cancelled()) files_->cancel();
    return follow(files_->try_step(may_block), may_block);
}

bool SaveActivity::follow(bool moved, bool may_block) {
    done_.store(files_->bytes_done(), std::memory_order_relaxed);
    total_.store(files_->bytes_total(), std::memory_order_relaxed);
    if (!finished()) {
        if (!files_->finished() || (files_->result() && !may_block)) return moved;
        result_.emplace(files_->result());
        if (files_->result())
            if (auto closed = closing_->after_names(); !closed) result_.emplace(closed.error());
    } else if (drained() || !files_->drained()) {
        return moved;
    }
    if (files_->drained()) drained_.store(true, std::memory_order_release);
    finish();
    return true;
}

}  // namespace sidestep::checkpoint
