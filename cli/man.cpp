// The man pages, made from what the help is made of.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "manual.hpp"

namespace sidestep::cli {
namespace {

// Text that troff prints as it is.
std::string plain(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '\\')
            out += "\\e";
        else if (c == '-')
            out += "\\-";
        else if (c == '\'')
            out += "\\(aq";
        else if (c == '~')
            out += "\\(ti";
        else if (c == '^')
            out += "\\(ha";
        else if (c == '`')
            out += "\\(ga";
        else
            out += c == '\n' ? ' ' : c;
    }
    // A line that begins with a dot would be a request.
    return out.starts_with('.') ? "\\&" + out : out;
}

std::string page_name(const CLI::App& app) {
    std::string name = name_of(app);
    std::replace(name.begin(), name.end(), ' ', '-');
    return name.empty() ? "sidestep" : "sidestep-" + name;
}

std::string tagged(std::string_view tag, std::string_view text) {
    return fmt::format(".TP\n\\fB{}\\fR\n{}\n", plain(tag), plain(text));
}

std::string section(const char* name, const std::string& text) {
    return text.empty() ? "" : fmt::format(".SH {}\n{}", name, text);
}

// ".BR" of all pages but this one.
std::string see_also(const CLI::App& app) {
    std::vector<const CLI::App*> others = commands_below(app);
    if (app.get_parent() != nullptr) others.insert(others.begin(), app.get_parent());
    std::string text;
    for (const CLI::App* other : others)
        text += fmt::format("{}.BR {} (1)", text.empty() ? "" : ",\n", plain(page_name(*other)));
    return text.empty() ? "" : text + "\n";
}

std::string page_of(const CLI::App& app, std::string_view version) {
    const std::string command = app.get_parent() == nullptr ? "sidestep" : "sidestep " + name_of(app);
    std::string synopsis = fmt::format("\\fB{}\\fR", plain(command)), arguments, own, general, verbs,
                examples;
    if (app.get_parent() == nullptr) synopsis += " \\fICOMMAND\\fR";
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_group().empty()) continue;
        (option->nonpositional() ? own : arguments) += tagged(spelled(*option), option->get_description());
        if (!option->nonpositional())
            synopsis += fmt::format("{0}\\fI{1}\\fR{2}", option->get_required() ? " " : " [",
                                    plain(option->get_name(true)), option->get_required() ? "" : "]");
    }
    synopsis += " [options]\n";
    for (const CLI::Option* option : followed(app))
        general += tagged(spelled(*option), option->get_description());
    for (const CLI::App* below : commands_below(app))
        verbs += tagged("sidestep " + name_of(*below), below->get_description());
    for (const Example& example : manual_of(app).examples)
        examples += fmt::format(".TP\n\\fB{}\\fR\n{}\n", plain(example.line), plain(example.does));
    return fmt::format(".TH {} 1 \"\" \"sidestep {}\" \"Sidestep\"\n", plain(page_name(app)),
                       plain(version)) +
           section("NAME", fmt::format("{} \\- {}\n", plain(page_name(app)), plain(app.get_description()))) +
           section("SYNOPSIS", synopsis) + section("ARGUMENTS", arguments) + section("COMMANDS", verbs) +
           section("OPTIONS", own) + section("GENERAL OPTIONS", general) + section("EXAMPLES", examples) +
           section("EXIT STATUS", plain(exit_codes) + "\n") + section("SEE ALSO", see_also(app));
}

void add_pages(const CLI::App& app, std::string_view version,
               std::vector<std::pair<std::string, std::string>>& pages) {
    pages.emplace_back(page_name(app) + ".1", page_of(app, version));
    for (const CLI::App* below : commands_below(app)) add_pages(*below, version, pages);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> man_pages(const CLI::App& program,
                                                           std::string_view version) {
    std::vector<std::pair<std::string, std::string>> pages;
    add_pages(program, version, pages);
    return pages;
}

}  // namespace sidestep::cli
