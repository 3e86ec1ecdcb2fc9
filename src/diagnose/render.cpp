// A diagnosis for people and for programs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include <sidestep/doctor.hpp>

namespace sidestep {

namespace {

using Json = nlohmann::ordered_json;

const char* heading(CheckGroup group) {
    switch (group) {
        case CheckGroup::gpu_gpu:
            return "GPU to GPU";
        case CheckGroup::gpu_nic:
            return "GPU to network card";
        case CheckGroup::gpu_storage:
            return "GPU to storage";
        case CheckGroup::host:
            return "host";
        case CheckGroup::container:
            return "container and virtual machine";
        case CheckGroup::versions:
            return "software versions";
        case CheckGroup::network:
            return "between this machine and the node";
    }
    return "";
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

constexpr std::size_t line_width = 110;
constexpr std::size_t detail_indent = 20;

std::string detail(const char* name, const std::string& text) {
    return fmt::format("           {:<8} {}\n", name, wrapped(text, detail_indent, line_width));
}

std::string finding_text(const Finding& finding, bool everything) {
    const bool well = finding.verdict == Verdict::pass;
    const std::string mark = finding.applies ? std::string(to_string(finding.verdict)) : "-";
    std::string text =
        fmt::format("  {:<8} {:<22} {}\n", mark, finding.id, wrapped(finding.summary, 34, line_width));
    if (!well || everything) {
        for (const Seen& seen : finding.seen) text += detail("seen", seen.source + ": " + seen.value);
    }
    if (well) return text;
    if (finding.cost_gb_per_s)
        text += detail("cost", fmt::format("about {:.1f} GB/s. {}", *finding.cost_gb_per_s, finding.cost));
    if (!finding.remedy.empty()) text += detail("do", finding.remedy);
    // Not wrapped: it is copied and pasted.
    if (!finding.command.empty())
        text += fmt::format("           {:<8} {}{}\n", "type", finding.command,
                            finding.needs_root ? "   (as root)" : "");
    return text;
}

Json finding_json(const Finding& finding) {
    Json json = {{"id", finding.id},           {"group", to_string(finding.group)},
                 {"title", finding.title},     {"verdict", to_string(finding.verdict)},
                 {"applies", finding.applies}, {"summary", finding.summary}};
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
    std::string text = fmt::format("machine {}: {} checks, {} pass, {} warn, {} fail, {} cannot be seen\n",
                                   machine, findings.size(), count(Verdict::pass), count(Verdict::warn),
                                   count(Verdict::fail), count(Verdict::unknown));
    std::string group;
    for (const Finding& finding : findings) {
        if (group != heading(finding.group)) {
            group = heading(finding.group);
            text += "\n" + group + "\n";
        }
        text += finding_text(finding, everything);
    }
    if (!notes.empty()) text += "\nnot looked at\n";
    for (const std::string& note : notes) text += "  " + wrapped(note, 4, line_width) + "\n";
    return text;
}

std::string Diagnosis::to_json() const {
    Json json = {{"version", 1},
                 {"machine", machine},
                 {"pass", count(Verdict::pass)},
                 {"warn", count(Verdict::warn)},
                 {"fail", count(Verdict::fail)},
                 {"unknown", count(Verdict::unknown)}};
    Json list = Json::array();
    for (const Finding& finding : findings) list.push_back(finding_json(finding));
    json["findings"] = list;
    json["notes"] = notes;
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sidestep
