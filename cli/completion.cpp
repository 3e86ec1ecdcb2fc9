// sidestep completion SHELL: the script of a shell, and the words that it asks for.
#include <memory>

#include <fmt/format.h>

#include "complete.hpp"
#include "completion_scripts.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

struct CompletionCommand {
    std::string shell;
    std::vector<std::string> words;
};

Result<void> run_completion(const CLI::App& program, const Globals& globals,
                            const CompletionCommand& command) {
    if (command.shell == "bash") return print(bash_completion);
    if (command.shell == "zsh") return print(zsh_completion);
    if (command.shell == "fish") return print(fish_completion);
    return print(candidates(program, command.words, globals));
}

}  // namespace

Action define_completion(CLI::App& app, const Globals& globals) {
    auto command = std::make_shared<CompletionCommand>();
    app.add_option("SHELL", command->shell, "the shell whose script is printed")
        ->required()
        ->type_name("bash|zsh|fish")
        ->check(CLI::IsMember({"bash", "zsh", "fish", "words"}).description(""));
    // What the scripts call: completion words -- WORDS...
    app.add_option("WORDS", command->words)->group("");
    const CLI::App* program = app.get_parent();
    return done_or_fails(
        [command, program, &globals] { return run_completion(*program, globals, *command); });
}

}  // namespace sidestep::cli
