// What a Loaded holds.
#pragma once

#include <memory>
#include <vector>

#include "checkpoint/layout.hpp"

namespace sidestep::checkpoint {

struct LoadedContent {
    LoadedContent(Checkpoint opened, const LoadOptions& asked)
        : checkpoint(std::move(opened)), options(asked) {}

    Checkpoint checkpoint;
    LoadOptions options;                                    // as they were asked for
    std::shared_ptr<const std::vector<Allocation>> memory;  // by place
    std::vector<std::vector<LoadedTensor>> tensors;         // by place; names are those of `checkpoint`
    std::vector<std::vector<std::size_t>> numbers;  // by place: their positions in the checkpoint, ascending
    Receipt receipt;
    Bytes file_bytes = 0;
};

// Fills `tensors` and `numbers` from the plan and the memory of each place.
void list_tensors(const LayoutPlan& plan, LoadedContent& content);

}  // namespace sidestep::checkpoint

namespace sidestep {

struct Loaded::Content : checkpoint::LoadedContent {
    using LoadedContent::LoadedContent;
};

}  // namespace sidestep
