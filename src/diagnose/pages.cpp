// docs/doctor: a page a check, made of the same words the doctor prints.
#include <fmt/format.h>

#include <sidestep/doctor.hpp>

#include "diagnose/check.hpp"

namespace sidestep {

namespace {

std::string page_text(const diagnose::Check& check) {
    std::string text = fmt::format(
        "# {}\n\nCheck `{}`, group {}.\n\n## What users see\n\n{}\n\n## How the doctor sees it\n\n{}\n\n"
        "## What it costs\n\n{}\n\n## What to do\n\n{}\n",
        check.title, check.id, to_string(check.group), check.symptom, check.looks_at, check.cost,
        check.remedy);
    if (check.command[0] != '\0')
        text += fmt::format("\n```\n{}\n```\n\n{}\n", check.command,
                            check.needs_root ? "This needs root." : "This needs no special rights.");
    text += fmt::format("\n## Sources\n\n{}\n\nAll checks: [README.md](README.md).\n", check.sources);
    return text;
}

std::string index_text(const std::vector<diagnose::Check>& checks) {
    std::string text =
        "# What the doctor checks\n\n`sidestep doctor` looks for these causes of a path that is off or slow. "
        "The pages are written by\n`sidestep doctor --pages docs/doctor` from the same words that the doctor "
        "prints.\n";
    std::string group;
    for (const diagnose::Check& check : checks) {
        if (group != to_string(check.group)) {
            group = to_string(check.group);
            text += fmt::format("\n## {}\n\n| check | cause |\n| --- | --- |\n", group);
        }
        text += fmt::format("| [{0}]({0}.md) | {1} |\n", check.id, check.title);
    }
    return text;
}

}  // namespace

std::vector<DoctorPage> doctor_pages() {
    const std::vector<diagnose::Check> checks = diagnose::all_checks();
    std::vector<DoctorPage> pages;
    pages.push_back({"README", CheckGroup::host, "What the doctor checks", index_text(checks)});
    for (const diagnose::Check& check : checks)
        pages.push_back({check.id, check.group, check.title, page_text(check)});
    return pages;
}

}  // namespace sidestep
