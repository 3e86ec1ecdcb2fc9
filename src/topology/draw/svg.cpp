// Prints a scene as SVG 1.1.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>

#include <sidestep/drawing.hpp>

#include "topology/draw/escape.hpp"
#include "topology/draw/layout.hpp"
#include "topology/draw/style.hpp"

namespace sidestep {

namespace topology::draw {
namespace {

// A tenth of a pixel is more than anybody sees.
std::string number(double value) {
    return fmt::format("{:g}", std::round(value * 10) / 10);
}

std::string classes(std::initializer_list<std::string_view> names) {
    std::string text;
    for (const std::string_view name : names) {
        if (!name.empty()) text.append(text.empty() ? "" : " ").append(name);
    }
    return text;
}

std::string title_element(const std::string& title) {
    return title.empty() ? "" : fmt::format("<title>{}</title>", escape_xml(title));
}

void write_text(const Text& text, std::string& svg) {
    const char* anchor = text.anchor == Anchor::middle ? "middle" : text.anchor == Anchor::end ? "end" : "";
    svg += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\"", number(text.at.x), number(text.at.y),
                       number(text.size));
    if (const std::string names = classes({class_of(text.tone), anchor, text.bold ? "bold" : ""});
        !names.empty())
        svg += fmt::format(" class=\"{}\"", names);
    svg += fmt::format(">{}</text>\n", escape_xml(text.words));
}

double radius_of(const Box& box) {
    switch (box.role) {
        case Role::panel:
            return 12;
        case Role::disc:
            return box.at.w / 2;
        case Role::cell:
        case Role::swatch:
            return 3;
        default:
            return std::min(7.0, box.at.h / 4);
    }
}

void write_box(const Box& box, std::string& svg) {
    const Rect& at = box.at;
    svg += fmt::format("<g>{}", title_element(box.title));
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\" class=\"{}\"/>",
                       number(at.x), number(at.y), number(at.w), number(at.h), number(radius_of(box)),
                       classes({class_of(box.role), class_of(box.ink), box.highlighted ? "here" : ""}));
    if (box.marked) {
        const double size = std::min(10.0, at.h / 2);
        svg += fmt::format("<path d=\"M{} {}h{}v{}z\" class=\"mark\"/>", number(at.right() - size - 1),
                           number(at.y + 1), number(size), number(size));
    }
    svg += "\n";
    for (const Text& text : box.texts) write_text(text, svg);
    svg += "</g>\n";
}

// A line through points with its corners rounded.
std::string rounded(const std::vector<Point>& points) {
    constexpr double radius = 6;
    std::string path = fmt::format("M{} {}", number(points.front().x), number(points.front().y));
    for (std::size_t i = 1; i < points.size(); ++i) {
        const Point& at = points[i];
        if (i + 1 == points.size()) {
            path += fmt::format("L{} {}", number(at.x), number(at.y));
            break;
        }
        const auto towards = [&](const Point& other) {
            const double length = std::hypot(other.x - at.x, other.y - at.y);
            const double part = length > 0 ? std::min(radius, length / 2) / length : 0;
            return Point{at.x + part * (other.x - at.x), at.y + part * (other.y - at.y)};
        };
        const Point in = towards(points[i - 1]);
        const Point out = towards(points[i + 1]);
        path += fmt::format("L{} {}Q{} {} {} {}", number(in.x), number(in.y), number(at.x), number(at.y),
                            number(out.x), number(out.y));
    }
    return path;
}

void write_edge(const Edge& edge, std::string& svg) {
    std::string path;
    if (edge.curve && edge.points.size() == 4) {
        const auto& p = edge.points;
        path = fmt::format("M{} {}C{} {} {} {} {} {}", number(p[0].x), number(p[0].y), number(p[1].x),
                           number(p[1].y), number(p[2].x), number(p[2].y), number(p[3].x), number(p[3].y));
    } else {
        path = rounded(edge.points);
    }
    svg += fmt::format(
        "<path d=\"{}\" stroke-width=\"{}\" class=\"{}\">{}</path>\n", path, number(edge.width),
        classes({"e", class_of(edge.ink), edge.curve ? "curve" : "", edge.dashed ? "dashed" : ""}),
        title_element(edge.title));
}

}  // namespace
}  // namespace topology::draw

std::string draw_svg(const Topology& topology, const DrawOptions& options) {
    using namespace topology::draw;
    const Scene scene = lay_out(topology, options);
    std::string svg = fmt::format(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" class=\"sidestep\" width=\"{0}\" "
        "height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" role=\"img\">\n",
        number(scene.width), number(scene.height));
    svg += fmt::format("{}\n<desc>{}</desc>\n", title_element(scene.title), escape_xml(scene.description));
    svg += fmt::format("<style type=\"text/css\">\n{}</style>\n", style_sheet(options.theme));
    svg += "<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n";
    // Panels lie under the edges, what the edges join lies on top of them.
    for (const Box& box : scene.boxes)
        if (box.role == Role::panel) write_box(box, svg);
    for (const Edge& edge : scene.edges) write_edge(edge, svg);
    for (const Box& box : scene.boxes)
        if (box.role != Role::panel) write_box(box, svg);
    for (const Text& text : scene.texts) write_text(text, svg);
    return svg + "</svg>\n";
}

}  // namespace sidestep
