// sidestep help [VERB].
#include <memory>

#include <fmt/format.h>

#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

Result<void> run_help(CLI::App& command, const std::string& verb) {
    if (verb.empty()) {
        // A parsed help verb would answer with its own help.
        command.clear();
        return print(command.help());
    }
    for (const CLI::App* app : command.get_subcommands([](const CLI::App*) { return true; }))
        if (app->get_name() == verb) return print(app->help(command.get_name()));
    return Error{ErrorCode::invalid_argument, fmt::format("there is no verb '{}'", verb), "help",
                 "sidestep --help lists the verbs"};
}

}  // namespace

Action define_help(CLI::App& app, const Globals&) {
    auto verb = std::make_shared<std::string>();
    app.add_option("VERB", *verb, "one of those of sidestep --help")->type_name("");
    CLI::App* command = app.get_parent();
    return done_or_fails([verb, command] { return run_help(*command, *verb); });
}

}  // namespace sidestep::cli
