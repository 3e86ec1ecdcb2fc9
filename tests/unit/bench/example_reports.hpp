// Reports made up for tests. Their machines are called "example": nothing in them was measured.
#pragma once

#include <string>

#include "bench/report.hpp"

namespace sidestep::bench {

// Four GPUs with all that a page shows: matrices, curves over size, a latency table, lanes beside one lane,
// peers, thresholds passed and missed, a case that was skipped and one that failed.
Report example_report();

// 12 pairs at 20 sizes in four cases, nine samples each.
Report large_report();

// Every text tries to end the element or attribute it stands in, and values that are not numbers, below 0 or
// 0.
Report hostile_report();

// The text that hostile_report() puts everywhere.
extern const char* const hostile_text;

}  // namespace sidestep::bench
