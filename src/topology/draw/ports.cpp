#include "topology/draw/ports.hpp"

#include <algorithm>

#include "topology/draw/details.hpp"

namespace sidestep::topology::draw {

void Ports::ask(std::size_t edge, bool last_point, std::size_t box, Side side, double order) {
    wanted_[{box, side}].push_back({order, edge, last_point});
}

void Ports::give(Scene& scene) const {
    for (const auto& [where, asked] : wanted_) {
        auto asks = asked;
        std::stable_sort(asks.begin(), asks.end(),
                         [](const Ask& a, const Ask& b) { return a.order < b.order; });
        const Rect& at = scene.boxes[where.first].at;
        double widths = 0;
        for (const Ask& ask : asks) widths += scene.edges[ask.edge].width + 2;
        // Close together, unless they need the whole side.
        const double room = std::min(at.w * 0.86, widths * 1.5);
        const double step = room / static_cast<double>(asks.size());
        double x = at.middle_x() - room / 2 + step / 2;
        for (const Ask& ask : asks) {
            auto& points = scene.edges[ask.edge].points;
            const Point port{x, where.second == Side::bottom ? at.bottom() : at.y};
            (ask.last_point ? points.back() : points.front()) = port;
            x += step;
        }
    }
}

Edge curve_of(const Outline& outline, std::uint32_t position) {
    const Link& link = outline.link(position);
    Edge edge;
    edge.points.resize(2);
    edge.curve = true;
    edge.ink = ink_of_link(link.kind);
    edge.gb_per_s = link.gb_per_s;
    edge.width = stroke_width(link.gb_per_s);
    edge.title = link_details(outline, position);
    return edge;
}

void bend(Edge& edge, double reach) {
    const Point a = edge.points.front();
    const Point b = edge.points.back();
    edge.points = {a, {a.x, a.y + reach}, {b.x, b.y + (a.y < b.y ? -reach : reach)}, b};
}

}  // namespace sidestep::topology::draw
