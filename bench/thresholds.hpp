// A file of least values that figures have to reach; docs/bench.md describes it.
#pragma once

#include <string>
#include <vector>

#include "bench/report.hpp"

namespace sidestep::bench {

struct Threshold {
    enum class Kind { min, max, min_share };

    std::string case_pattern;    // fits() the case's key
    std::string figure_pattern;  // fits() the figure's name
    Bytes bytes = 0;             // only figures of this size; 0: of any
    Kind kind = Kind::min;
    double value = 0;  // in the figure's unit; of min_share: 0 to 1 of its limit
};

// ErrorCode::invalid_argument names the member that is missing or of the wrong type.
Result<std::vector<Threshold>> thresholds_from_json(const std::string& text, const std::string& where);
Result<std::vector<Threshold>> load_thresholds(const std::string& path);

// Gives each figure its threshold and verdict by the first line that fits it. A line that judges no figure counts as one that
// failed. Notes of the report name such lines, and figures whose line asks for a share where no limit is known. Answers how
// many failed.
int judge(Report& report, const std::vector<Threshold>& thresholds);

}  // namespace sidestep::bench
