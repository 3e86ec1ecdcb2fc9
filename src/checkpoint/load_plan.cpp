#include "checkpoint/load_plan.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"
#include "checkpoint/axes.hpp"

namespace sidestep::checkpoint {
namespace {

Error wrong(std::string message, std::string hint = {}) {
    return {ErrorCode::invalid_argument, std::move(message), "load", std::move(hint)};
}

Result<void> check_options(const LoadOptions& options) {
    if (options.to.empty()) return wrong("no place to load to was named");
    for (auto place = options.to.begin(); place != options.to.end(); ++place) {
        if (!place->is_gpu() && !place->is_host())
            return wrong(
                fmt::format("a checkpoint is loaded to GPUs and host memory, not to {}", place->to_string()));
        if (std::find(options.to.begin(), place, *place) != place)
            return wrong(fmt::format("{} is named twice", place->to_string()), "name each place once");
    }
    if (options.layout == Layout::by_axis && options.rules.empty())
        return wrong("the layout by axis needs shard rules",
                     "say which tensors are cut along which axis, or choose another layout");
    if (options.layout != Layout::by_axis && !options.rules.empty())
        return wrong(fmt::format("shard rules have no meaning for the layout {}", to_string(options.layout)),
                     "choose the layout axis, or leave the rules out");
    return {};
}

}  // namespace

Result<LoadPlan> plan_load(const Checkpoint& checkpoint, const LoadOptions& options, Bytes block) {
    SIDESTEP_CHECK(check_options(options));
    LoadPlan plan;
    RuledAxes ruled;
    if (options.layout == Layout::by_axis) {
        SIDESTEP_TRY(ruled, axes_of(checkpoint.tensors(), options.rules));
        plan.notes = std::move(ruled.notes);
    }
    SIDESTEP_TRY(LayoutPlan layout,
                 lay_out(checkpoint.tensors(), options.to.size(), options.layout, ruled.axes));
    plan.bytes = layout.bytes_to_arrive(checkpoint.tensors());
    auto ranges = ranges_of(checkpoint.tensors(), checkpoint.files(), block);
    for (std::size_t file = 0; file < ranges.size(); ++file) {
        if (ranges[file].empty()) continue;
        plan.files.push_back(
            {checkpoint.files()[file].path, 0, std::move(ranges[file]), 0, checkpoint.files()[file].node});
        plan.file_numbers.push_back(file);
        plan.file_bytes += plan.files.back().bytes();
    }
    // The list of tensors lives as long as the copy of the checkpoint that is held with it.
    const auto held = std::make_shared<const Checkpoint>(checkpoint);
    std::shared_ptr<const std::vector<TensorInfo>> tensors(held, &held->tensors());
    plan.placement =
        std::make_shared<const LoadPlacement>(std::move(tensors), std::move(layout), plan.file_numbers);
    return plan;
}

}  // namespace sidestep::checkpoint
