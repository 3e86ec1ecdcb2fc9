// The command `sidestep`: reads the command line, runs one verb of verb.hpp's table.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

constexpr const char* exit_codes =
    "Exit codes: 0 done; 1 failed, or doctor found a failure, topo diff a difference, or bench a missed\n"
    "threshold; 2 a place, option, file or machine that does not exist or makes no sense; 3 the required\n"
    "path is not available; 4 doctor found only warnings; 5 doctor found no GPU or no\n"
    "driver; 130 interrupted.";

std::string options_of(const CLI::App& app) {
    std::string text = "Options of every verb, before or after it:\n";
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_lnames().empty() || option->get_lnames().front() == "help") continue;
        std::string name = "--" + option->get_lnames().front();
        if (option->get_type_size_max() > 0) name += " " + option->get_type_name();
        text += fmt::format("  {:<28}{}\n", name, option->get_description());
    }
    return text + "\n" + exit_codes;
}

// What CLI11 found wrong, in the words of this command.
Error usage_error(const CLI::App& app, const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    const std::string hint =
        chosen.empty() ? "sidestep --help lists the verbs and options"
                       : fmt::format("sidestep help {} lists the options", chosen.front()->get_name());
    std::string message = error.what();
    const auto left = app.remaining(true);
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !left.empty()) {
        const char* kind = chosen.empty() ? "verb" : "argument";
        if (left.front().starts_with("-")) kind = "option";
        message = fmt::format("there is no {} '{}'", kind, left.front());
        if (kind == std::string_view("argument"))
            message = fmt::format("'{}' is one argument too many", left.front());
    }
    return Error{ErrorCode::invalid_argument, message, {}, hint};
}

Result<ExitCode> printed(const std::string& text) {
    const auto result = print(text);
    if (!result) return result.error();
    return ExitCode::done;
}

// The words before --, where the verb is one that starts a program. What is behind is that program's,
// whatever it looks like.
int own_words(int argc, const char* const* argv) {
    std::string_view verb;  // the first word that is one
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word == "--") return verb == "run" ? i : argc;
        const bool known =
            std::any_of(std::begin(verbs), std::end(verbs), [&](const Verb& v) { return v.name == word; });
        if (verb.empty() && known) verb = word;
    }
    return argc;
}

Result<ExitCode> run(int argc, const char* const* argv) {
    Globals globals;
    const int own = own_words(argc, argv);
    for (int i = own + 1; i < argc; ++i) globals.program.emplace_back(argv[i]);
    argc = own;
    CLI::App app("Moves bytes between GPU memory, host memory and files on the shortest path.", "sidestep");
    app.set_version_flag("--version", fmt::format("sidestep {}", version()), "print the version");
    // One verb; a second verb's name is then an argument, as in `sidestep help copy`.
    app.require_subcommand(0, 1);
    add_globals(app, globals);
    app.get_formatter()->label("SUBCOMMAND", "VERB");
    std::vector<std::pair<CLI::App*, Action>> actions;
    for (const Verb& verb : verbs) {
        CLI::App* child = app.add_subcommand(verb.name, verb.summary);
        child->group("Verbs");
        child->fallthrough();
        child->footer([&app] { return options_of(app); });
        actions.emplace_back(child, verb.define(*child, globals));
    }
    app.footer(exit_codes);  // after the verbs, which would inherit it
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        return printed(app.help());
    } catch (const CLI::CallForVersion& version_text) {
        return printed(std::string(version_text.what()) + "\n");
    } catch (const CLI::ParseError& error) {
        return usage_error(app, error);
    }
    for (const auto& [child, action] : actions)
        if (child->parsed()) return action();
    return Error{
        ErrorCode::invalid_argument, "a verb is missing", {}, "sidestep --help lists the verbs and options"};
}

// Errors of the command line itself are told as JSON too.
bool wants_json(int argc, const char* const* argv) {
    argc = own_words(argc, argv);
    for (int i = 1; i < argc; ++i)
        if (std::string_view(argv[i]) == "--json") return true;
    return false;
}

int run_and_report(int argc, const char* const* argv) {
    const auto result = run(argc, argv);
    if (result) return static_cast<int>(*result);
    report(result.error(), wants_json(argc, argv));
    return static_cast<int>(exit_code(result.error().code));
}

}  // namespace
}  // namespace sidestep::cli

int main(int argc, char** argv) {
    // Before the driver is loaded: with more queues in a GPU a stream that waits holds up fewer others
    // (docs/collectives.md, copy engines). Programs that the command starts inherit it.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    // The library throws nothing; this is for what the standard library throws here.
    try {
        return sidestep::cli::run_and_report(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "sidestep: %s\n", error.what());
    } catch (...) {
        std::fputs("sidestep: unknown failure\n", stderr);
    }
    return static_cast<int>(sidestep::cli::ExitCode::failed);
}
