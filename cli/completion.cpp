// sidestep completion WHAT: the shell script, and the word lists it asks for.
#include <memory>

#include <fmt/format.h>

#include "bash_completion.hpp"
#include "bench/case.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

// One word a line.
std::string machine_words() {
    std::string text = "live\n";
    for (const std::string& name : Topology::model_names()) text += name + "\n";
    return text;
}

std::string verb_words() {
    std::string text;
    for (const Verb& verb : verbs) text += fmt::format("{}\n", verb.name);
    return text;
}

std::string case_words() {
    std::string text;
    for (const bench::Case& test : bench::all_cases()) text += fmt::format("{}\n", test.key);
    return text;
}

// The options of the command and, where `verb` is one, of that verb.
Result<std::string> option_words(const CLI::App& command, const std::string& verb) {
    std::string text;
    bool found = verb.empty();
    const auto add = [&text](const CLI::App& app) {
        for (const CLI::Option* option : app.get_options())
            for (const std::string& name : option->get_lnames()) text += fmt::format("--{}\n", name);
    };
    for (const CLI::App* app : command.get_subcommands([](const CLI::App*) { return true; })) {
        if (app->get_name() != verb) continue;
        add(*app);
        found = true;
    }
    if (!found)
        return Error{ErrorCode::invalid_argument, fmt::format("there is no verb '{}'", verb), "completion",
                     "sidestep --help lists the verbs"};
    add(command);
    return text;
}

// The memory places of the machine; the script adds files itself.
Result<std::string> place_words(const Globals& globals) {
    const auto context = open_context(globals);
    if (!context) return context.error();
    std::string text = "host\n";
    for (const Device& device : context->topology().devices()) {
        if (device.kind == DeviceKind::cpu) text += Place::host(device.index).to_string() + "\n";
        if (device.kind == DeviceKind::gpu) text += Place::gpu(device.index).to_string() + "\n";
    }
    return text;
}

Result<void> run_completion(const CLI::App& command, const Globals& globals, const std::string& what,
                            const std::string& verb) {
    if (what == "bash") return print(bash_completion);
    if (what == "machines") return print(machine_words());
    if (what == "verbs") return print(verb_words());
    if (what == "cases") return print(case_words());
    const auto words = what == "options" ? option_words(command, verb) : place_words(globals);
    if (!words) return words.error();
    return print(*words);
}

}  // namespace

Action define_completion(CLI::App& app, const Globals& globals) {
    struct Arguments {
        std::string what;
        std::string verb;
    };
    auto arguments = std::make_shared<Arguments>();
    app.add_option(
           "WHAT", arguments->what,
           "bash: the script to source; verbs, options [VERB], machines, places, cases: words, one a line")
        ->required()
        ->type_name("")
        ->check(CLI::IsMember({"bash", "verbs", "options", "machines", "places", "cases"}).description(""));
    app.add_option("VERB", arguments->verb, "the verb whose options are wanted")->type_name("");
    const CLI::App* command = app.get_parent();
    return done_or_fails([arguments, command, &globals] {
        return run_completion(*command, globals, arguments->what, arguments->verb);
    });
}

}  // namespace sidestep::cli
