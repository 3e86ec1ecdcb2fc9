// The machine's drawing, made part of the page.
#include <fmt/format.h>

#include <string_view>

#include <sidestep/drawing.hpp>

#include "bench/html/parts.hpp"
#include "bench/html/text.hpp"

namespace sidestep::bench::html {

namespace {

constexpr std::string_view style_begin = "<style type=\"text/css\">\n";
constexpr std::string_view style_end = "</style>\n";
// Every rule of a drawing's style sheet begins a line with this.
constexpr std::string_view scope = ".sidestep ";

std::string style_of(const std::string& svg) {
    const std::size_t begin = svg.find(style_begin);
    const std::size_t end = svg.find(style_end);
    if (begin == std::string::npos || end == std::string::npos) return "";
    return svg.substr(begin + style_begin.size(), end - begin - style_begin.size());
}

// The same rules, only for pages that match `selector`.
std::string within(const std::string& rules, std::string_view selector) {
    std::string text;
    std::string_view left = rules;
    while (!left.empty()) {
        const std::string_view line = left.substr(0, left.find('\n'));
        left.remove_prefix(std::min(left.size(), line.size() + 1));
        if (line.substr(0, scope.size()) == scope) text += fmt::format("{} {}\n", selector, line);
    }
    return text;
}

// A drawing follows the viewer's theme by itself; here it also follows the page's button.
std::string themed_style(const std::string& light, const std::string& dark) {
    return fmt::format(
        "<style>\n{}@media screen{{{}}}\n@media screen and (prefers-color-scheme:dark){{{}}}\n"
        ".sidestep .back{{fill:none!important}}</style>\n",
        style_of(light), within(style_of(dark), ":root[data-theme=dark]"),
        within(style_of(dark), ":root:not([data-theme=light])"));
}

// From "<svg" on, without its style sheet and the namespace, which HTML knows.
std::string picture_of(const std::string& svg) {
    std::string text = svg.substr(std::min(svg.find("<svg"), svg.size()));
    const std::size_t begin = text.find(style_begin);
    const std::size_t end = text.find(style_end);
    if (begin != std::string::npos && end != std::string::npos)
        text.erase(begin, end + style_end.size() - begin);
    constexpr std::string_view space = " xmlns=\"http://www.w3.org/2000/svg\"";
    if (const std::size_t at = text.find(space); at != std::string::npos) text.erase(at, space.size());
    return text;
}

}  // namespace

std::string machine(const Report& report) {
    std::string text = "<section id=\"machine\"><h2>The machine</h2>\n";
    if (report.topology.empty())
        return text + "<p class=\"note\">The report has no topology to draw.</p></section>\n";
    const auto topology = Topology::from_json(report.topology, "the report's topology");
    if (!topology)
        return text +
               fmt::format("<p class=\"note\">The topology of the report cannot be read: {}</p></section>\n",
                           escape(topology.error().to_string()));
    const std::string light = draw_svg(*topology, {Theme::light, 0});
    const std::string dark = draw_svg(*topology, {Theme::dark, 0});
    return text + themed_style(light, dark) + "<div class=\"scroll drawing\">" + picture_of(light) +
           "</div></section>\n";
}

}  // namespace sidestep::bench::html
