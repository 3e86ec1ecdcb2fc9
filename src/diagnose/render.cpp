// A diagnosis for people and for programs.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include <sidestep/doctor.hpp>

namespace sidestep {

namespace {

using Json = nlohmann::ordered_json;

// The answer in one line.
std::string health_words(const Diagnosis& diagnosis) {
    const std::string gpus = fmt::format("{} GPU{}", diagnosis.gpus, diagnosis.gpus == 1 ? "" : "s");
    const std::string before = diagnosis.gpus > 0 ? gpus + ", " : "";
    switch (diagnosis.health()) {
        case Health::well:
            return before + "nothing wrong was found";
        case Health::warnings:
            return before + "nothing is broken; something is slower than it could be";
        case Health::failures:
            return before + "something is broken";
        case Health::no_driver:
            return before +
                   "no driver answers for the GPUs: get it to work first, most of the rest cannot be seen";
        case Health::no_gpu:
            // Of a file the notes say more.
            return diagnosis.machine == "live"
                       ? "no GPU was found; `lspci -d 10de:` lists those that are plugged in"
                       : "no GPU was found";
    }
    return {};
}

// Paragraphs of at most `width` characters, every line after the first with `indent` blanks before it.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width) {
    std::string result;
    std::size_t column = indent;
    std::size_t at = 0;
    while (at < text.size()) {
        std::size_t end = text.find(' ', at);
        if (end == std::string::npos) end = text.size();
        const std::string word = text.substr(at, end - at);
        if (column > indent && column + 1 + word.size() > width) {
            result += "\n" + std::string(indent, ' ');
            column = indent;
        } else if (column > indent) {
            result += ' ';
            ++column;
        }
        result += word;
        column += word.size();
        at = end + 1;
    }
    return result;
}

constexpr std::size_t line_width = 100;
constexpr std::size_t detail_indent = 20;

std::string detail(const char* name, const std::string& text) {
    return fmt::format("           {:<8} {}\n", name, wrapped(text, detail_indent, line_width));
}

std::string line(std::string_view mark, const std::string& id, const std::string& summary) {
    return fmt::format("  {:<8} {:<22} {}\n", mark, id, wrapped(summary, 34, line_width));
}

std::string evidence_text(const Finding& finding) {
    std::string text;
    for (const Seen& seen : finding.seen) text += detail("seen", seen.source + ": " + seen.value);
    return text;
}

// A finding that is not content, with all there is to know.
std::string cause_text(const Finding& finding) {
    std::string text = line(to_string(finding.verdict), finding.id, finding.summary) + evidence_text(finding);
    if (finding.cost_gb_per_s)
        text +=
            detail("cost", fmt::format("loses about {:.1f} GB/s. {}", *finding.cost_gb_per_s, finding.cost));
    if (!finding.remedy.empty()) text += detail("do", finding.remedy);
    // Not wrapped: it is copied and pasted.
    if (!finding.command.empty())
        text += fmt::format("           {:<8} {}{}\n", "type", finding.command,
                            finding.needs_root ? "   (as root)" : "");
    return text;
}

// What a cause explains: what is wrong because of it a line each, what cannot be seen by name.
std::string explained_text(const std::vector<Finding>& findings, const std::string& cause, bool everything) {
    std::string text;
    std::string unseen;
    for (const Finding& finding : findings) {
        if (finding.because != cause) continue;
        if (finding.verdict == Verdict::unknown && !everything) {
            unseen += (unseen.empty() ? "" : ", ") + finding.id;
            continue;
        }
        text += detail("so", fmt::format("{}: {}", finding.id, finding.summary));
        if (everything) text += evidence_text(finding);
    }
    if (!unseen.empty()) text += detail("unseen", unseen);
    return text;
}

std::string open_text(const std::vector<Finding>& findings, bool everything) {
    std::string text;
    std::string_view title;
    for (const Finding& finding : findings) {
        if (finding.verdict == Verdict::pass || !finding.because.empty()) continue;
        const std::string_view wanted = finding.verdict == Verdict::unknown ? "cannot be seen"
                                        : title.empty()                     ? "first"
                                                                            : "then";
        if (wanted != title) text += fmt::format("\n{}\n", wanted);
        title = wanted;
        std::string alike;
        if (finding.verdict == Verdict::unknown) {
            const auto same = [&](const Finding& other) {
                return other.verdict == Verdict::unknown && other.because.empty() &&
                       other.summary == finding.summary;
            };
            if (std::find_if(findings.begin(), findings.end(), same)->id != finding.id) continue;
            for (const Finding& other : findings)
                if (same(other) && other.id != finding.id) alike += (alike.empty() ? "" : ", ") + other.id;
        }
        text += cause_text(finding) + explained_text(findings, finding.id, everything);
        if (!alike.empty()) text += detail("also", alike);
    }
    return text;
}

// The findings that are content: their names, or with `everything` a line and the evidence of each. Those of the way
// to a node always have their line, since it tells rates.
std::string content_text(const std::vector<Finding>& findings, bool applies, bool everything) {
    std::string names;
    std::string lines;
    for (const Finding& finding : findings) {
        if (finding.verdict != Verdict::pass || finding.applies != applies) continue;
        if (everything || finding.group == CheckGroup::network) {
            lines += line(applies ? "pass" : "-", finding.id, finding.summary);
            if (everything) lines += evidence_text(finding);
        } else {
            names += (names.empty() ? "" : ", ") + finding.id;
        }
    }
    if (!names.empty()) lines += "  " + wrapped(names, 2, line_width) + "\n";
    return lines.empty() ? "" : fmt::format("\n{}\n{}", applies ? "pass" : "does not apply", lines);
}

Json finding_json(const Finding& finding) {
    Json json = {{"id", finding.id},           {"group", to_string(finding.group)},
                 {"title", finding.title},     {"verdict", to_string(finding.verdict)},
                 {"applies", finding.applies}, {"summary", finding.summary}};
    if (!finding.because.empty()) json["because"] = finding.because;
    Json seen = Json::array();
    for (const Seen& fact : finding.seen) seen.push_back({{"source", fact.source}, {"value", fact.value}});
    json["seen"] = seen;
    if (finding.cost_gb_per_s) json["cost_gb_per_s"] = *finding.cost_gb_per_s;
    if (!finding.cost.empty()) json["cost"] = finding.cost;
    if (!finding.remedy.empty()) json["remedy"] = finding.remedy;
    if (!finding.command.empty()) json["command"] = finding.command;
    if (!finding.command.empty()) json["needs_root"] = finding.needs_root;
    json["page"] = finding.page;
    return json;
}

}  // namespace

std::string Diagnosis::to_string(bool everything) const {
    std::string text =
        wrapped(fmt::format("machine {}: {}", machine, health_words(*this)), 2, line_width) + "\n";
    text +=
        fmt::format("{} {}: {} pass, {} warn, {} fail, {} cannot be seen, {} not applicable\n", findings.size(),
                    findings.size() == 1 ? "check" : "checks", count(Verdict::pass), count(Verdict::warn),
                    count(Verdict::fail), count(Verdict::unknown), not_applicable());
    text += open_text(findings, everything);
    text += content_text(findings, true, everything);
    text += content_text(findings, false, everything);
    if (!notes.empty()) text += "\nnot looked at\n";
    for (const std::string& note : notes) text += "  " + wrapped(note, 4, line_width) + "\n";
    return text;
}

std::string Diagnosis::to_json() const {
    Json json = {{"version", 1},
                 {"machine", machine},
                 {"health", sidestep::to_string(health())},
                 {"pass", count(Verdict::pass)},
                 {"warn", count(Verdict::warn)},
                 {"fail", count(Verdict::fail)},
                 {"unknown", count(Verdict::unknown)},
                 {"not_applicable", not_applicable()}};
    Json list = Json::array();
    for (const Finding& finding : findings) list.push_back(finding_json(finding));
    json["findings"] = list;
    json["notes"] = notes;
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sidestep
