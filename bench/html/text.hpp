// Words and numbers of a report as they stand on the page.
#pragma once

#include <string>
#include <string_view>

#include "bench/report.hpp"

namespace sidestep::bench::html {

// Text for HTML and SVG, between tags and in quoted attributes. Bytes that are no UTF-8 and control
// characters become U+FFFD.
std::string escape(std::string_view text);

// "394", "55.4", "0.0123", "1,170": three significant digits, more before the point. "no number" for what is
// infinite or not a number.
std::string number(double value);
// "99.4 %".
std::string percent(double share);
// A coordinate of a drawing, to a tenth.
std::string coordinate(double value);

// Whether a share of the limit is known: there are a limit and samples that make one.
bool has_share(const Figure& figure);
// "394", with "no samples" where there are none.
std::string median_text(const Figure& figure);
// "[392 .. 395]"; empty below two samples.
std::string spread_text(const Samples& samples);
// "at least 175" or "at most 909.7".
std::string threshold_text(const Figure& figure);
// The size in words; empty where size plays no part.
std::string size_text(const Figure& figure);

// Everything known about a figure, on one line: the words of the readout.
std::string describe(const Figure& figure);

// JSON that may stand in a script element: nothing in it ends the element.
std::string json_for_script(const std::string& json);

}  // namespace sidestep::bench::html
