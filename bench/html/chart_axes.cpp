#include "bench/html/chart_axes.hpp"

#include <algorithm>
#include <cmath>

#include "bench/html/text.hpp"

namespace sidestep::bench::html {

namespace {

constexpr double logarithmic_from = 30;
constexpr int max_size_marks = 6;

struct Extent {
    double min = 0, max = 0;
    bool empty = true;

    void add(double value) {
        if (!std::isfinite(value)) return;
        min = empty ? value : std::min(min, value);
        max = empty ? value : std::max(max, value);
        empty = false;
    }
};

void add_samples(const Samples& samples, Extent& values) {
    if (samples.empty()) return;
    values.add(samples.min());
    values.add(samples.max());
}

template <typename Call>
void each_point(const ChartRow& row, const Call& call) {
    for (const Chart& chart : row.charts)
        for (const Curve& curve : chart.curves)
            for (const Figure* figure : curve.points) call(*figure);
}

std::vector<Mark> size_marks(double min, double max) {
    const int first = static_cast<int>(std::ceil(std::log2(min) - 1e-9));
    // 2^64 is not a size.
    const int last = std::min(63, static_cast<int>(std::floor(std::log2(max) + 1e-9)));
    std::vector<Mark> marks;
    int step = 1;
    for (const int candidate : {1, 2, 4, 5, 10, 20})
        if ((last - first) / (step = candidate) < max_size_marks) break;
    for (int power = first; power <= last; power += step) {
        const auto bytes = static_cast<Bytes>(std::ldexp(1.0, power));
        marks.push_back({static_cast<double>(bytes), format_bytes(bytes)});
    }
    if (marks.empty()) {
        constexpr double greatest = 18446744073709549568.0;  // of the doubles below 2^64
        for (const double end : {min, max})
            marks.push_back({end, format_bytes(static_cast<Bytes>(std::min(end, greatest)))});
    }
    return marks;
}

std::string plain(double value) {
    const std::string text = number(value);
    if (text.find('.') == std::string::npos) return text;
    const std::size_t last = text.find_last_not_of('0');
    return text.substr(0, text[last] == '.' ? last : last + 1);
}

std::vector<Mark> logarithmic_marks(double min, double max) {
    std::vector<Mark> marks;
    const int first = static_cast<int>(std::floor(std::log10(min)));
    const int last = static_cast<int>(std::ceil(std::log10(max)));
    const int step = std::max(1, (last - first) / 6);
    for (int power = first; power <= last; power += step) {
        const double value = std::pow(10.0, power);
        if (value >= min * 0.999 && value <= max * 1.001) marks.push_back({value, plain(value)});
    }
    return marks;
}

// About five steps of 1, 2 or 5 times a power of ten.
double step_of(double width) {
    const double rough = width / 5;
    const double power = std::pow(10.0, std::floor(std::log10(rough)));
    const double part = rough / power;
    return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}

std::vector<Mark> linear_marks(double min, double max) {
    std::vector<Mark> marks;
    const double step = step_of(max - min);
    const double first = std::ceil(min / step - 1e-9);
    for (int i = 0; i < 12 && (first + i) * step <= max * (1 + 1e-9); ++i) {
        const double value = (first + i) * step;
        marks.push_back({value, plain(value)});
    }
    return marks;
}

}  // namespace

double Axes::x(double bytes) const {
    const double width = std::log2(max_bytes) - std::log2(min_bytes);
    const double part = width > 0 ? (std::log2(bytes) - std::log2(min_bytes)) / width : 0.5;
    return area.left + part * (area.right - area.left);
}

double Axes::y(double value) const {
    const auto scaled = [&](double v) { return logarithmic ? std::log10(v) : v; };
    const double width = scaled(max) - scaled(min);
    const double part = width > 0 ? (scaled(value) - scaled(min)) / width : 0.5;
    return area.bottom - std::clamp(part, 0.0, 1.0) * (area.bottom - area.top);
}

bool Axes::can_show(double value) const {
    return std::isfinite(value) && (!logarithmic || value > 0);
}

Axes axes_of(const ChartRow& row) {
    Axes axes;
    Extent bytes, values, above_zero;
    each_point(row, [&](const Figure& figure) {
        bytes.add(static_cast<double>(figure.bytes));
        add_samples(figure.measured, values);
        for (const Peer& peer : figure.peers) add_samples(peer.samples, values);
        if (figure.limit > 0) values.add(figure.limit);
        const double median = figure.measured.median();
        if (!figure.measured.empty() && median > 0) above_zero.add(median);
        if (figure.limit > 0) above_zero.add(figure.limit);
    });
    axes.min_bytes = std::max(1.0, bytes.min);
    axes.max_bytes = std::max(axes.min_bytes, bytes.max);
    axes.size_marks = size_marks(axes.min_bytes, axes.max_bytes);
    axes.logarithmic = !above_zero.empty && above_zero.max >= logarithmic_from * above_zero.min;
    if (axes.logarithmic) {
        axes.min = above_zero.min / 1.4;
        axes.max = std::max(above_zero.max, values.max) * 1.4;
        axes.value_marks = logarithmic_marks(axes.min, axes.max);
    } else {
        axes.min = std::min(0.0, values.min);
        axes.max = values.max > axes.min ? values.max + 0.08 * (values.max - axes.min) : axes.min + 1;
        axes.value_marks = linear_marks(axes.min, axes.max);
    }
    return axes;
}

}  // namespace sidestep::bench::html
