// The command `sidestep`: reads the command line, runs one verb of verb.hpp's table.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/nearest_name.hpp"
#include "base/try.hpp"
#include "manual.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

// The command that was asked for: a verb, or an operation of one.
const CLI::App& chosen(const CLI::App& app) {
    const auto below = app.get_subcommands();
    return below.empty() ? app : chosen(*below.front());
}

std::string hint_of(const CLI::App& app) {
    return app.get_parent() == nullptr ? "sidestep --help lists the verbs and options"
                                       : fmt::format("sidestep help {} lists the options", name_of(app));
}

// The words that could have been meant: options of `app`, or what may stand below it.
std::vector<std::string> known_words(const CLI::App& app, bool options) {
    std::vector<std::string> known;
    for (const CLI::App* below : commands_below(app))
        if (!options) known.push_back(below->get_name());
    auto all = followed(app);
    for (const CLI::Option* option : app.get_options()) all.push_back(option);
    for (const CLI::Option* option : all)
        for (const std::string& name : option->get_lnames())
            if (options && !option->get_group().empty()) known.push_back("--" + name);
    return known;
}

// What CLI11 found wrong, in the words of this command.
Error usage_error(const CLI::App& app, const CLI::ParseError& error) {
    const CLI::App& command = chosen(app);
    std::string message = error.what(), hint = hint_of(command);
    if (const auto at = message.find(": At Most 1 required"); at != std::string::npos)
        message.replace(at, std::string::npos, " is given more than once");
    auto left = app.remaining(true);
    const auto is_option = [](const std::string& word) { return word.starts_with("-"); };
    // An option that nobody knows is told before an argument that is missing: its value may be that argument.
    std::stable_partition(left.begin(), left.end(), is_option);
    if (!left.empty() &&
        (is_option(left.front()) || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)) {
        const std::string& word = left.front();
        const bool option = is_option(word);
        const char* kind = option ? "option" : "verb";
        message = fmt::format("there is no {} '{}'", kind, word);
        if (!option && command.get_parent() != nullptr)
            message = fmt::format("'{}' is one argument too many", word);
        hint = base::did_you_mean(word.substr(0, word.find('=')), known_words(command, option), hint);
    }
    return Error{ErrorCode::invalid_argument, message, {}, hint};
}

Result<ExitCode> printed(const std::string& text) {
    SIDESTEP_CHECK(print(text));
    return ExitCode::done;
}

// The action of the command that was asked for; options that it does not follow are refused, not passed over.
Result<ExitCode> act(const CLI::App& app, const std::vector<std::pair<CLI::App*, Action>>& actions) {
    const CLI::App& command = chosen(app);
    if (const std::string option = not_followed(command); !option.empty() && command.get_parent() != nullptr)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} does not follow this option", name_of(command)), option,
                     hint_of(command)};
    // A variable of a script that is not set: without the option the command would do something else.
    for (const CLI::Option* option : command.get_options())
        if ((option->get_type_name() == "FILE" || option->get_type_name() == "DIR") && option->count() > 0 &&
            option->results().front().empty())
            return Error{ErrorCode::invalid_argument, "an empty name names nothing", option->get_name(),
                         hint_of(command)};
    for (const auto& [child, action] : actions)
        if (child->parsed()) return action();
    return Error{ErrorCode::invalid_argument, "a verb is missing", {}, hint_of(app)};
}

// In the help of `app` and of all commands below it.
void add_footers(CLI::App& app) {
    app.footer([&app] { return footer_of(app); });
    for (CLI::App* below : app.get_subcommands([](CLI::App*) { return true; })) add_footers(*below);
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
    globals.color = color_asked(own, argv);
    for (int i = own + 1; i < argc; ++i) globals.program.emplace_back(argv[i]);
    argc = own;
    CLI::App app("Moves bytes between GPU memory, host memory and files on the shortest path.", "sidestep");
    app.set_version_flag("--version", fmt::format("sidestep {}", version()), "print the version");
    // One verb; a second verb's name is then an argument, as in `sidestep help copy`.
    app.require_subcommand(0, 1);
    add_globals(app, globals);
    app.formatter(std::make_shared<HelpFormatter>());
    app.get_formatter()->label("SUBCOMMAND", "VERB");
    std::vector<std::pair<CLI::App*, Action>> actions;
    for (const Verb& verb : verbs) {
        CLI::App* child = app.add_subcommand(verb.name, verb.summary);
        child->group("Verbs");
        child->fallthrough();
        actions.emplace_back(child, verb.define(*child, globals));
    }
    add_footers(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        return printed(painted_help(app.help(), globals));
    } catch (const CLI::CallForVersion& version_text) {
        return printed(std::string(version_text.what()) + "\n");
    } catch (const CLI::ParseError& error) {
        return usage_error(app, error);
    }
    return act(app, actions);
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
    report(result.error(), wants_json(argc, argv), color_asked(own_words(argc, argv), argv));
    return static_cast<int>(exit_code(result.error().code));
}

// A file that is opened takes the lowest number that is free, and what is printed would go into it. Nothing is written to what
// takes the place of standard output here: the command says that it cannot, as before.
void fill_standard_descriptors() {
    for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (::fcntl(number, F_GETFD) < 0)
            (void)::open("/dev/null", number == STDERR_FILENO ? O_WRONLY : O_RDONLY);
}

}  // namespace
}  // namespace sidestep::cli

int main(int argc, char** argv) {
    sidestep::cli::fill_standard_descriptors();
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
