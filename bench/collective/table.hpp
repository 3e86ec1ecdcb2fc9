// What a run found: as the table that nccl-tests prints, and as figures of a report.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/collective/plan.hpp"
#include "bench/report.hpp"

namespace sidestep::bench::collective {

// A call out of place and in place, by this library, by its copy engines where they were measured, and by
// NCCL in its quickest mode; `times` says how many times as quick as NCCL's best this library is.
class Table {
public:
    // `how`: "one process a GPU".
    Table(int ranks, int root, std::string how);
    ~Table();
    // Whole rows, below their heading where it does not stand there yet.
    std::string rows(const std::vector<Line>& lines);
    // What stands below the last row.
    std::string end();

private:
    struct State;
    std::unique_ptr<State> state_;
};

// Two figures for each line of this library, time and bus bandwidth, with NCCL's modes as peers. The limit of
// a bandwidth is what kernels reach over the slowest link between two of the GPUs; none on emulated GPUs.
std::vector<Figure> figures_of(const Context& context, const std::vector<int>& gpus,
                               const std::vector<Line>& lines);

// Elements that were wrong in this library's results; -1 where none were looked at.
std::int64_t wrong_of(const std::vector<Line>& lines);

}  // namespace sidestep::bench::collective
