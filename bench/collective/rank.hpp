// One rank of a run: measures every call of the plan with every library, in step with the other ranks.
#pragma once

#include <functional>
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

// What hears of a rank's lines, a row of the table at a time: a call out of place and in place, by all libraries.
using RowSink = std::function<void(std::vector<Line>)>;

// Every rank of the group calls with the same plan, on a thread of its own. `group` is on GPU `gpu`. What a
// library cannot do is a line with the reason; a failure of the group is an error. The notes.
Result<std::vector<std::string>> measure(const Context& context, Group& group, int gpu, const Plan& plan,
                                         const RowSink& row);

}  // namespace sidestep::bench::collective
