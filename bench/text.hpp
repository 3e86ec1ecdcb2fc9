// Reports for people, in lines.
#pragma once

#include <string>
#include <vector>

#include "bench/report.hpp"

namespace sidestep::bench {

// Three or four significant digits without an exponent: "55.41", "0.793", "1170".
std::string format_value(double value);

// Rows of cells as lines with aligned columns, each line indented by two blanks. Columns that are empty in
// every row are left out.
std::string align(const std::vector<std::vector<std::string>>& rows);

// What it was measured on, a few lines.
std::string head_text(const Report& report);

// One case: its key and description, then why there are no figures, or a line for each: what, size, median,
// least and most, limit and how it was had, share of it, peers, and whether it was verified and passed.
std::string case_text(const CaseResult& result);

// The report's notes and how many thresholds were met, where there are any.
std::string tail_text(const Report& report);

}  // namespace sidestep::bench
