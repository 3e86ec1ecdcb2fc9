// sidestep help [COMMAND]; and the help of all commands as man pages.
#include <filesystem>
#include <memory>
#include <system_error>

#include <fmt/format.h>

#include "base/nearest_name.hpp"
#include "base/try.hpp"
#include "manual.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

struct HelpCommand {
    std::vector<std::string> words;
    std::string man;
};

Result<void> write_man_pages(const CLI::App& program, const std::string& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    for (const auto& [name, text] : man_pages(program, version()))
        SIDESTEP_CHECK(write_file(fmt::format("{}/{}", folder, name), text));
    return {};
}

Result<void> run_help(CLI::App& program, const Globals& globals, const HelpCommand& command) {
    if (!command.man.empty()) return write_man_pages(program, command.man);
    // A parsed help verb would answer with its own help.
    if (command.words.empty()) program.clear();
    const CLI::App* app = &program;
    std::string above;
    for (const std::string& word : command.words) {
        const CLI::App* below = command_below(*app, word);
        if (below == nullptr) {
            std::vector<std::string> known;
            for (const CLI::App* one : commands_below(*app)) known.push_back(one->get_name());
            const char* kind = app == &program ? "verb" : "operation";
            return Error{ErrorCode::invalid_argument, fmt::format("there is no {} '{}'", kind, word), "help",
                         base::did_you_mean(word, known, "sidestep --help lists the verbs")};
        }
        above += (above.empty() ? "" : " ") + app->get_name();
        app = below;
    }
    return print(painted_help(app->help(above), globals));
}

}  // namespace

Action define_help(CLI::App& app, const Globals& globals) {
    auto command = std::make_shared<HelpCommand>();
    app.add_option("VERB", command->words, "one of those of sidestep --help, and perhaps an operation of it")
        ->type_name("");
    app.add_option("--man", command->man, "write the man pages of all commands into a folder")
        ->type_name("DIR");
    CLI::App* program = app.get_parent();
    return done_or_fails([command, program, &globals] { return run_help(*program, globals, *command); });
}

}  // namespace sidestep::cli
