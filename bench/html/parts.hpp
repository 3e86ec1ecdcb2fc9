// The parts of the page. Each answers HTML that is closed and escaped; empty where there is nothing to show.
#pragma once

#include <string>
#include <vector>

#include "bench/html/groups.hpp"
#include "bench/report.hpp"

namespace sidestep::bench::html {

// The style sheet: both themes, narrow screens and paper.
std::string style_sheet();
// The script, which adds readouts, sorting, the choice of theme and the download; the page says everything
// without it too.
const char* script();
// Its SHA-256 in base64, for the policy that lets this script and no other run.
const char* script_hash();

// Title and where, when and how the figures were taken.
std::string header(const Report& report);
// Counts, the figures below 90 % of their limit, and the table of cases.
std::string summary(const Report& report);
// The machine as draw_svg draws it; in its place a sentence where the topology is missing or cannot be read.
std::string machine(const Report& report);
// Whether a case has more to show than its line in the summary.
bool has_section(const CaseResult& result);
// One case with all that belongs to it. `number` makes the anchor of summary's links.
std::string case_section(const CaseResult& result, std::size_t number);
// The table of all figures and the report as JSON.
std::string all_figures(const Report& report);

// Matrices as heat maps, with what their colours mean below them.
std::string heat_maps(const std::vector<const Matrix*>& matrices);
// Charts of one unit, to one scale.
std::string chart_row(const ChartRow& row);
// Figures that are in no matrix and on no curve, with bars.
std::string bars(const std::vector<const Figure*>& figures);

// "case-3".
std::string anchor(std::size_t number);
// A bar as long as the share of the limit, with the share in words; empty without a limit.
std::string share_bar(const Figure& figure);
// The class of a cell for a share of the limit: "h0" (far below) to "h6" (at it).
std::string share_class(double share);
// "pass" or "fail" as a mark, with the threshold; empty where there is none.
std::string verdict_mark(const Figure& figure);
// Peers' names and medians, a line each.
std::string peer_lines(const Figure& figure);

}  // namespace sidestep::bench::html
