// What the help of a command says beside its own arguments, and what completion and man pages read from it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace sidestep::cli {

struct Example {
    const char* line;  // as typed
    const char* does;
};

// A command is the program itself, a verb, or an operation of a verb such as `bench compare`.
struct Manual {
    std::string_view command;  // "bench compare"; empty: the program itself
    std::string_view follows;  // options of the program, and of the verb, that this command follows too
    std::vector<Example> examples;
};

// "bench compare"; empty for the program itself.
std::string name_of(const CLI::App& app);

// Every command has one; tests/cli/test_manual.py finds those that have none.
const Manual& manual_of(const CLI::App& app);

// The commands below `app` that are not hidden, in the order of their definition.
std::vector<const CLI::App*> commands_below(const CLI::App& app);

// Null where there is none of that name.
const CLI::App* command_below(const CLI::App& app, const std::string& name);

// The options of the commands above that `app` follows, without the help.
std::vector<const CLI::Option*> followed(const CLI::App& app);

// The option of that name ("--size", "-n") which `app` has or follows; null where there is none.
const CLI::Option* find_option(const CLI::App& app, std::string_view name);

// "--size SIZE".
std::string spelled(const CLI::Option& option);

// A line of two columns, as help has them, its text broken into lines of at most 100 columns.
std::string listed(std::string_view name, std::string_view text);

// Help whose lines are short enough to be read.
class HelpFormatter : public CLI::Formatter {
public:
    std::string make_option(const CLI::Option* option, bool positional) const override;
    std::string make_subcommand(const CLI::App* command) const override;
};

// What stands below the command's own options in its help.
std::string footer_of(const CLI::App& app);

// "" where the command follows all that was given before or after it; else the first option that it does not.
std::string not_followed(const CLI::App& app);

// The man pages: pairs of a file name and its text.
std::vector<std::pair<std::string, std::string>> man_pages(const CLI::App& program, std::string_view version);

extern const char* const exit_codes;

}  // namespace sidestep::cli
