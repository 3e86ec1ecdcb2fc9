#include "doctor_page.hpp"

#include <fmt/format.h>

#include <sidestep/drawing.hpp>

#include "bench/html/text.hpp"

namespace sidestep::cli {
namespace {

using bench::html::escape;

constexpr const char* page_style =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1a212b;"
    "background:#fff}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}"
    "article{border-left:.3rem solid #8a96a6;padding:.2rem 1rem;margin:1rem 0;background:#f5f7fa}"
    "article.fail{border-color:#c62828}article.warn{border-color:#e08a00}h3{margin:.3rem 0;font-size:1rem}"
    "code,pre{font:13px/1.45 ui-monospace,monospace}pre{overflow-x:auto;padding:.5rem;background:#e9edf2}"
    "svg{max-width:100%;height:auto}.id{color:#5b6878;font-weight:400}"
    "@media(prefers-color-scheme:dark){body{background:#14181d;color:#dde3ea}article{background:#1d232b}"
    "pre{background:#262e38}.id{color:#9aa7b6}}";

std::string paragraph(const char* name, const std::string& text) {
    return text.empty() ? "" : fmt::format("<p><b>{}</b> {}</p>\n", name, escape(text));
}

std::string evidence(const Finding& finding) {
    if (finding.seen.empty()) return {};
    std::string rows;
    for (const Seen& seen : finding.seen)
        rows += fmt::format("<li><code>{}</code>: {}</li>\n", escape(seen.source), escape(seen.value));
    return "<details><summary>evidence</summary><ul>\n" + rows + "</ul></details>\n";
}

std::string cause(const Finding& finding, const std::vector<Finding>& all) {
    std::string text =
        fmt::format("<article class=\"{}\" id=\"{}\"><h3>{} <span class=\"id\">{}: {}</span></h3>\n",
                    to_string(finding.verdict), escape(finding.id), escape(finding.summary),
                    to_string(finding.verdict), escape(finding.id));
    if (finding.cost_gb_per_s)
        text += paragraph("Cost",
                          fmt::format("loses about {:.1f} GB/s. {}", *finding.cost_gb_per_s, finding.cost));
    text += paragraph("Do", finding.remedy);
    if (!finding.command.empty())
        text += fmt::format("<pre>{}{}</pre>\n", escape(finding.command),
                            finding.needs_root ? "   # as root" : "");
    for (const Finding& other : all)
        if (other.because == finding.id) text += paragraph("So", other.id + ": " + other.summary);
    return text + evidence(finding) + "</article>\n";
}

// The findings of a kind that stand for themselves, a line each.
std::string folded(const char* title, const std::vector<Finding>& all, Verdict verdict, bool applies) {
    std::string rows;
    int count = 0;
    for (const Finding& finding : all) {
        if (finding.verdict != verdict || finding.applies != applies || !finding.because.empty()) continue;
        ++count;
        rows += fmt::format("<li><code>{}</code> {}</li>\n", escape(finding.id), escape(finding.summary));
    }
    if (count == 0) return {};
    return fmt::format("<details><summary>{} {}</summary><ul>\n{}</ul></details>\n", count, title, rows);
}

}  // namespace

std::string doctor_page(const Diagnosis& diagnosis, const Topology& topology,
                        const std::optional<ProbeReport>& probe) {
    std::string text = fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<title>{0}: sidestep doctor</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}: {2}</h1>\n",
        escape(diagnosis.machine), page_style, to_string(diagnosis.health()));
    text += fmt::format(
        "<p>{} GPUs; {} checks: {} pass, {} warn, {} fail, {} cannot be seen, {} not applicable.</p>\n",
        topology.gpu_count(), diagnosis.findings.size(), diagnosis.count(Verdict::pass),
        diagnosis.count(Verdict::warn), diagnosis.count(Verdict::fail), diagnosis.count(Verdict::unknown),
        diagnosis.not_applicable());
    text += "<h2>What is wrong</h2>\n";
    std::string causes;
    for (const Finding& finding : diagnosis.findings)
        if ((finding.verdict == Verdict::fail || finding.verdict == Verdict::warn) && finding.because.empty())
            causes += cause(finding, diagnosis.findings);
    text += causes.empty() ? "<p>Nothing wrong was found.</p>\n" : causes;
    text += folded("cannot be seen", diagnosis.findings, Verdict::unknown, true);
    text += folded("pass", diagnosis.findings, Verdict::pass, true);
    text += folded("not applicable", diagnosis.findings, Verdict::pass, false);
    // The declaration of a document of its own has no place within another.
    std::string drawing = draw_svg(topology);
    drawing.erase(0, drawing.find("<svg"));
    text += "<h2>The machine</h2>\n" + drawing;
    text += fmt::format("<details><summary>pairs of devices</summary><pre>{}</pre></details>\n",
                        escape(list_pairs(topology)));
    if (probe) text += fmt::format("<h2>Measured</h2>\n<pre>{}</pre>\n", escape(probe->to_string()));
    return text + "</body>\n</html>\n";
}

}  // namespace sidestep::cli
