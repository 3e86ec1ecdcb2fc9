// Shard rules applied to the tensors of a checkpoint. Pure.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/layout.hpp"

namespace sidestep::checkpoint {

struct RuledAxes {
    Axes axes;                       // by tensor
    std::vector<std::string> notes;  // rules that no tensor was left for
};

// The first rule that fits a name counts. ErrorCode::invalid_argument names the rule whose pattern is broken.
Result<RuledAxes> axes_of(const std::vector<TensorInfo>& tensors, const std::vector<ShardRule>& rules);

}  // namespace sidestep::checkpoint
