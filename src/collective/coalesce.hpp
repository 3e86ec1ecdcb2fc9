// Calls that a program makes together, and of which several share a launch.
#pragma once

#include <functional>
#include <vector>

#include "collective/choose.hpp"

namespace sidestep::collective {

// The calls in their order. Neighbours of one kind become one operation where the arena holds the packets of all of
// them, and it takes less time than each alone does, which `alone_us` answers. They may run side by side, so none of
// them may depend on another. Alike on all ranks, like choose(): what a call is counts, not where its bytes lie.
std::vector<Operation> coalesce(std::vector<Operation> calls, const GroupFacts& facts,
                                const std::function<double(const Operation&)>& alone_us);

}  // namespace sidestep::collective
