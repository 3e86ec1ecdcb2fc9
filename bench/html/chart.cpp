// Curves over size, as SVG inside the page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "bench/html/chart_axes.hpp"
#include "bench/html/parts.hpp"
#include "bench/html/text.hpp"

namespace sidestep::bench::html {

namespace {

// Charts beyond these fold away: a machine with 8 GPUs has 56 pairs.
constexpr std::size_t charts_shown = 12;

std::string point(double x, double y) {
    return fmt::format("{} {}", coordinate(x), coordinate(y));
}

// A path through points that can be shown; a point that cannot breaks it.
class PathWords {
public:
    explicit PathWords(const Axes& axes) : axes_(axes) {}
    void add(double bytes, double value) {
        if (!axes_.can_show(value)) {
            open_ = false;
            return;
        }
        words_.append(open_ ? "L" : "M").append(point(axes_.x(bytes), axes_.y(value)));
        open_ = true;
    }
    const std::string& words() const { return words_; }

private:
    const Axes& axes_;
    std::string words_;
    bool open_ = false;
};

std::string grid(const Axes& axes, const std::string& unit) {
    const PlotArea& area = axes.area;
    std::string lines, labels;
    for (const Mark& mark : axes.value_marks) {
        const double y = axes.y(mark.value);
        lines += fmt::format("M{}H{}", point(area.left, y), coordinate(area.right));
        labels += fmt::format("<text x=\"{}\" y=\"{}\" class=\"end\">{}</text>", coordinate(area.left - 7),
                              coordinate(y + 4), escape(mark.label));
    }
    for (const Mark& mark : axes.size_marks) {
        const double x = axes.x(mark.value);
        lines += fmt::format("M{}v4", point(x, area.bottom));
        // The outermost labels stay inside the drawing.
        const char* side = x > area.right - 12 ? "end" : "middle";
        labels += fmt::format("<text x=\"{}\" y=\"{}\" class=\"{}\">{}</text>",
                              coordinate(x > area.right - 12 ? area.width - 1 : x),
                              coordinate(area.bottom + 19), side, escape(mark.label));
    }
    return fmt::format(
        "<path class=\"grid\" d=\"{}\"/><path class=\"axis\" d=\"M{}H{}\"/>{}<text x=\"0\" "
        "y=\"11\">{}</text>\n",
        lines, point(area.left, area.bottom), coordinate(area.right), labels, escape(unit));
}

// The area between the least and the most samples of each point.
std::string band(const Curve& curve, const Axes& axes, int colour) {
    std::string there, back;
    for (const Figure* figure : curve.points) {
        const Samples& samples = figure->measured;
        if (samples.values.size() < 2) continue;
        if (!axes.can_show(samples.min()) || !axes.can_show(samples.max())) continue;
        const double x = axes.x(static_cast<double>(figure->bytes));
        there.append(there.empty() ? "M" : "L").append(point(x, axes.y(samples.max())));
        back = fmt::format("L{}{}", point(x, axes.y(samples.min())), back);
    }
    return there.empty() ? "" : fmt::format("<path class=\"band c{}\" d=\"{}{}Z\"/>\n", colour, there, back);
}

std::string dot(double x, double y, int colour, const char* kind, const std::string& words) {
    return fmt::format("<circle class=\"{} c{}\" cx=\"{}\" cy=\"{}\" r=\"3\"><title>{}</title></circle>\n",
                       kind, colour, coordinate(x), coordinate(y), escape(words));
}

std::string curve_lines(const Curve& curve, const Axes& axes, int colour) {
    PathWords path(axes);
    std::string dots;
    for (const Figure* figure : curve.points) {
        const double median = figure->measured.empty() ? NAN : figure->measured.median();
        const double bytes = static_cast<double>(figure->bytes);
        path.add(bytes, median);
        if (axes.can_show(median))
            dots += dot(axes.x(bytes), axes.y(median), colour, "dot", describe(*figure));
    }
    return fmt::format("<path class=\"line c{}\" d=\"{}\"/>\n{}", colour, path.words(), dots);
}

// `names` are those the peer has at different sizes.
std::string peer_line(const Curve& curve, const std::vector<std::string>& names, const Axes& axes,
                      int colour) {
    PathWords path(axes);
    std::string dots;
    for (const Figure* figure : curve.points) {
        const auto at = std::find_if(figure->peers.begin(), figure->peers.end(), [&](const Peer& peer) {
            return std::find(names.begin(), names.end(), peer.name) != names.end();
        });
        if (at == figure->peers.end() || at->samples.empty()) continue;
        const double median = at->samples.median();
        const double bytes = static_cast<double>(figure->bytes);
        path.add(bytes, median);
        if (!axes.can_show(median)) continue;
        dots += dot(axes.x(bytes), axes.y(median), colour, "ring",
                    fmt::format("{} · {} · {} {} {}", at->name, size_text(*figure), number(median),
                                figure->unit, spread_text(at->samples)));
    }
    return fmt::format("<path class=\"peer c{}\" d=\"{}\"/>\n{}", colour, path.words(), dots);
}

// The label of a limit stands above its line, or below where another one stands there; else it is left out.
std::string limit_label(double limit, const Axes& axes, std::set<double>& taken) {
    for (const double offset : {-6.0, 14.0}) {
        const double y = axes.y(limit) + offset;
        const auto near = taken.lower_bound(y - 13);
        if (near != taken.end() && *near < y + 13) continue;
        taken.insert(y);
        return fmt::format("<text x=\"{}\" y=\"{}\" class=\"end\">limit {}</text>\n",
                           coordinate(axes.area.right), coordinate(y), number(limit));
    }
    return "";
}

// Limits that are the same for several curves are drawn once. A limit known at one size only is a short line.
std::string limit_lines(const Chart& chart, const Axes& axes) {
    std::set<std::string> drawn;
    std::set<double> taken;
    std::string text;
    for (const Curve& curve : chart.curves) {
        PathWords path(axes);
        double last = 0;
        for (const Figure* figure : curve.points) {
            const bool known = std::isfinite(figure->limit) && figure->limit > 0;
            path.add(static_cast<double>(figure->bytes), known ? figure->limit : NAN);
            if (known) last = figure->limit;
        }
        if (last == 0) continue;
        std::string words = path.words();
        if (words.find('L') == std::string::npos) words += "h-14";
        if (!drawn.insert(words).second) continue;
        text += fmt::format("<path class=\"limit\" d=\"{}\"/>{}", words, limit_label(last, axes, taken));
    }
    return text;
}

std::string legend_item(const std::string& kind, int colour, const std::string& words) {
    std::string mark;
    if (kind != "limit")
        mark = fmt::format("<circle class=\"{} c{}\" cx=\"13\" cy=\"5\" r=\"3\"/>",
                           kind == "line" ? "dot" : "ring", colour);
    return fmt::format(
        "<li><svg viewBox=\"0 0 26 10\" aria-hidden=\"true\"><path class=\"{} c{}\" d=\"M1 "
        "5h24\"/>{}</svg>{}</li>",
        kind, colour, mark, escape(words));
}

// Where the limits of a chart come from, each source once.
std::string limit_sources(const Chart& chart) {
    std::vector<std::string> sources;
    bool any = false;
    for (const Curve& curve : chart.curves)
        for (const Figure* figure : curve.points) {
            any = any || figure->limit > 0;
            if (figure->limit <= 0 || figure->limit_source.empty()) continue;
            if (std::find(sources.begin(), sources.end(), figure->limit_source) == sources.end())
                sources.push_back(figure->limit_source);
        }
    return !any ? "" : sources.empty() ? "limit" : fmt::format("limit ({})", one_name(sources));
}

struct Drawn {
    std::string title, svg, legend;
};

Drawn draw(const Chart& chart, const Axes& axes, const std::string& unit) {
    std::string bands, lines, legend;
    int colour = 0;
    for (const Curve& curve : chart.curves) {
        bands += band(curve, axes, colour);
        std::string peers;
        const int own = colour++ % 6;
        legend += legend_item("line", own, curve.name.empty() ? "sidestep" : curve.name);
        for (const std::vector<std::string>& names : peer_curves(curve.points)) {
            const int of_peer = colour++ % 6;
            const std::string name = one_name(names);
            peers += peer_line(curve, names, axes, of_peer);
            legend += legend_item("peer", of_peer,
                                  chart.curves.size() > 1 ? fmt::format("{} ({})", name, curve.name) : name);
        }
        lines += peers + curve_lines(curve, axes, own);
    }
    if (const std::string sources = limit_sources(chart); !sources.empty())
        legend += legend_item("limit", 0, sources);
    const std::string title = escape(chart.title);
    return {title,
            fmt::format(
                "<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}{}{}{}</svg>",
                coordinate(axes.area.width), coordinate(axes.area.height), title, grid(axes, unit), bands,
                limit_lines(chart, axes), lines),
            fmt::format("<ul class=\"legend\">{}</ul>", legend)};
}

}  // namespace

std::string chart_row(const ChartRow& row) {
    const Axes axes = axes_of(row);
    std::vector<Drawn> charts;
    for (const Chart& chart : row.charts) charts.push_back(draw(chart, axes, row.unit));
    const bool one_legend =
        charts.size() > 1 && std::all_of(charts.begin(), charts.end(), [&](const Drawn& chart) {
            return chart.legend == charts.front().legend;
        });
    const char* open = charts.size() < 3 ? "<div class=\"charts few\">\n" : "<div class=\"charts\">\n";
    std::string text = std::string("<div class=\"readable\">") + open;
    for (std::size_t i = 0; i < charts.size(); ++i) {
        if (i == charts_shown)
            text += fmt::format("</div><details><summary>{} more</summary>{}", charts.size() - i, open);
        text += fmt::format("<figure class=\"curves\"><figcaption>{}</figcaption>{}{}</figure>\n",
                            charts[i].title, charts[i].svg, one_legend ? "" : charts[i].legend);
    }
    text += charts.size() > charts_shown ? "</div></details>\n" : "</div>\n";
    if (one_legend) text += charts.front().legend;
    return text + "<p class=\"readout\" aria-live=\"polite\"></p></div>\n";
}

}  // namespace sidestep::bench::html
