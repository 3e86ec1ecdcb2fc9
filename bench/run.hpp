// Runs cases and keeps what they found.
#pragma once

#include <string>
#include <vector>

#include "bench/case.hpp"
#include "bench/report.hpp"

namespace sidestep::bench {

// A report without cases: what it was measured on, and when. `command` is what was typed.
Report begin_report(const Context& context, std::string command);

// One case: skipped with the reason, failed with the error, or its figures.
CaseResult run_case(const Case& test, const Context& context, const Options& options);

// The cases whose keys fit one of the patterns ("host_link", "peer_*"), in their order; without patterns all.
// ErrorCode::not_found names a pattern that fits none.
Result<std::vector<Case>> choose_cases(const std::vector<Case>& all,
                                       const std::vector<std::string>& patterns);

// Whether a text fits a pattern, in which * stands for any characters and ? for one.
bool fits(const std::string& pattern, const std::string& text);

}  // namespace sidestep::bench
