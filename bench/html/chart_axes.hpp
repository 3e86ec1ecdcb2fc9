// The axes of a chart: where values stand, and the marks along them. Pure.
#pragma once

#include <string>
#include <vector>

#include "bench/html/groups.hpp"

namespace sidestep::bench::html {

// The area of a chart that curves are drawn in, in the units of its viewBox.
struct PlotArea {
    double left = 52, right = 446, top = 16, bottom = 232;
    double width = 460, height = 262;
};

struct Mark {
    double value = 0;
    std::string label;
};

// The values of a row of charts. Only what can be drawn counts: finite, and above 0 on a logarithmic axis.
struct Axes {
    double min_bytes = 0, max_bytes = 0;
    double min = 0, max = 0;
    bool logarithmic = false;  // of values; sizes always are
    PlotArea area;
    std::vector<Mark> size_marks, value_marks;

    double x(double bytes) const;
    double y(double value) const;
    bool can_show(double value) const;
};

// One scale for all charts of a row: logarithmic where values differ by a factor of 30 and more, else from 0.
Axes axes_of(const ChartRow& row);

}  // namespace sidestep::bench::html
