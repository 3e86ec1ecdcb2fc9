// One rank of a run: measures every call of the plan with every library, in step with the other ranks.
#pragma once

#include <string>
#include <vector>

#include "bench/collective/plan.hpp"

namespace sidestep::bench::collective {

struct Found {
    std::vector<Line> lines;
    std::vector<std::string> notes;  // what was not measured, and why

    std::string to_json() const;
    static Result<Found> from_json(const std::string& text);
};

// Every rank of the group calls with the same plan, on a thread of its own. `group` is on GPU `gpu`. What a
// library cannot do is a line with the reason; a failure of the group is an error.
Result<Found> measure(const Context& context, Group& group, int gpu, const Plan& plan);

}  // namespace sidestep::bench::collective
