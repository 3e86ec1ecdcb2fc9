// The page put together.
#include <fmt/format.h>

#include "bench/html/parts.hpp"
#include "bench/html/text.hpp"

namespace sidestep::bench {

namespace html {

namespace {

// The greatest size of each kind is what people look for; the others fold away.
std::string matrices(const std::vector<std::vector<Matrix>>& kinds) {
    std::vector<const Matrix*> greatest, others;
    for (const std::vector<Matrix>& sizes : kinds)
        for (const Matrix& matrix : sizes) (&matrix == &sizes.front() ? greatest : others).push_back(&matrix);
    std::string text = heat_maps(greatest);
    if (!others.empty())
        text += fmt::format("<details><summary>the same at other sizes</summary>\n{}</details>\n",
                            heat_maps(others));
    return text;
}

std::string head(const Report& report) {
    // Nothing is loaded from anywhere, and of all scripts only the page's own one runs.
    return fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'; "
        "script-src 'sha256-{}'; img-src data:; base-uri 'none'; form-action 'none'\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{}sidestep bench</title>\n"
        "<style>\n{}</style>\n</head>\n",
        script_hash(), report.machine.empty() ? "" : escape(report.machine) + " – ", style_sheet());
}

}  // namespace

bool has_section(const CaseResult& result) {
    return !result.figures.empty() || !result.notes.empty();
}

std::string case_section(const CaseResult& result, std::size_t number) {
    std::string text = fmt::format("<section id=\"{}\" class=\"case\"><h2>{}</h2><p class=\"lead\">{}</p>\n",
                                   anchor(number), escape(result.key), escape(result.description));
    if (!result.failed.empty())
        text += fmt::format("<p class=\"failure\">Failed: {}</p>\n", escape(result.failed));
    if (!result.skipped.empty())
        text += fmt::format("<p class=\"note\">Skipped: {}</p>\n", escape(result.skipped));
    for (const std::string& note : result.notes)
        text += fmt::format("<p class=\"note\">{}</p>\n", escape(note));
    const Groups groups = group(result);
    text += matrices(groups.matrices);
    for (const ChartRow& row : groups.charts) text += chart_row(row);
    return text + bars(groups.rest) + "</section>\n";
}

}  // namespace html

std::string to_html(const Report& report) {
    std::string text = html::head(report) + "<body>\n<main>\n" + html::header(report) +
                       html::summary(report) + html::machine(report);
    // A case without figures has said everything in the summary's table.
    for (std::size_t i = 0; i < report.cases.size(); ++i)
        if (html::has_section(report.cases[i])) text += html::case_section(report.cases[i], i);
    text += html::all_figures(report);
    text +=
        "<footer>GB are 10<sup>9</sup> bytes; KiB, MiB and GiB are powers of 1024. A figure is the median of "
        "its "
        "samples; brackets hold the least and the most.</footer>\n";
    return text + fmt::format("</main>\n<script>{}</script>\n</body>\n</html>\n", html::script());
}

}  // namespace sidestep::bench
