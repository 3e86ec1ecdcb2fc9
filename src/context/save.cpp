// Context::save: tensors of any places to safetensors files.
#include <fmt/format.h>

#include "base/try.hpp"
#include "checkpoint/save_activity.hpp"
#include "context/impl.hpp"
#include "driver/files.hpp"

namespace sidestep {
namespace {

Result<void> check_folder(const std::string& path) {
    SIDESTEP_TRY(const auto facts, driver::file_facts(path));
    if (!facts)
        return Error{ErrorCode::not_found, fmt::format("the folder {} does not exist", path), "save",
                     "make it, or leave shard_bytes at 0 for one file of that name"};
    if (facts->type != driver::FileType::directory)
        return Error{
            ErrorCode::invalid_argument,
            fmt::format("{} is a {}, and several files need a folder", path, driver::to_string(facts->type)),
            "save", "leave shard_bytes at 0 for one file of that name"};
    return {};
}

}  // namespace

Transfer Context::save(const std::vector<TensorToSave>& tensors, const std::string& path,
                       const SaveOptions& options) const {
    if (auto ours = impl_->engine->check_process(); !ours) return ContextAccess::refuse(*this, ours.error());
    if (auto good = context::check(options); !good) return ContextAccess::refuse(*this, good.error());
    auto plan = checkpoint::plan_save(tensors, path, options);
    if (!plan) return ContextAccess::refuse(*this, plan.error());
    if (!plan->index_path.empty())
        if (auto folder = check_folder(path); !folder) return ContextAccess::refuse(*this, folder.error());

    const auto closing = std::make_shared<checkpoint::SaveClosing>(*plan, options.sync_file);
    if (closing->wanted()) {
        plan->spread.before_names = [closing] { return closing->before_names(); };
        plan->spread.without_names = [closing] { return closing->without_names(); };
    }
    if (closing->wants_checksums())
        plan->spread.look = [closing](std::size_t file, Bytes offset, const void* data, Bytes size) {
            return closing->look(file, offset, data, size);
        };
    CopyOptions how = context::copy_options(options);
    how.sync_file = options.sync_file;
    std::shared_ptr<transfer::Engine> engine(impl_, impl_->engine.get());
    std::shared_ptr<transfer::Activity> activity = engine->submit_spread(std::move(plan->spread), how);
    if (closing->wanted()) {
        activity = std::make_shared<checkpoint::SaveActivity>(std::move(activity), closing);
        if (!activity->finished()) engine->drive_in_background(activity);
    }
    return ContextAccess::follow(std::move(engine), std::move(activity));
}

}  // namespace sidestep
