#include "manual.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>

#include <fmt/format.h>

namespace sidestep::cli {

const char* const exit_codes =
    "Exit codes: 0 done; 1 failed, or doctor found a failure, topo diff a difference, or bench a missed\n"
    "threshold; 2 a place, option, file or machine that does not exist or makes no sense; 3 the required\n"
    "path is not available; 4 doctor found only warnings; 5 doctor found no GPU or no driver;\n"
    "130 interrupted.";

namespace {

constexpr std::size_t text_column = 30, widest_line = 100;

// Every command follows these.
constexpr std::string_view always = "json color";
// What "reach" stands for below: those of whoever opens a machine that may have nodes.
constexpr std::string_view reach = "machine as fault nodes key-file encrypt";

// In the order of the help.
const std::vector<Manual> manuals = {
    {"",
     "reach require verify quiet",
     {{"sidestep topo", "this machine"},
      {"sidestep --machine dgx-h100 route gpu:0 gpu:5", "a modelled one: no GPU is needed"},
      {"sidestep copy file:weights.bin gpu:0 --verify", "a file to a GPU, compared byte by byte"}}},
    {"copy",
     "reach require verify quiet",
     {{"sidestep copy file:weights.bin gpu:0 --verify --explain", "which way the bytes went, and why"},
      {"sidestep copy host gpu:0 --size 1GiB --repeat 5", "how fast host memory reaches a GPU"},
      {"sidestep copy file:weights.bin@4KiB+1MiB file:part.bin", "a part of a file"}}},
    {"route",
     "reach require",
     {{"sidestep route gpu:0 gpu:1", "between two GPUs"},
      {"sidestep route file:weights.bin gpu:0 --size 8GiB", "a file that need not be there"}}},
    {"load",
     "reach verify quiet",
     {{"sidestep load model.safetensors --to gpu:all --verify", "a whole copy on every GPU, compared"},
      {"sidestep load model.safetensors --to gpu:0,gpu:1 --layout tensor", "each tensor on one of two"}}},
    {"inspect",
     "reach quiet",
     {{"sidestep inspect model.safetensors --only 'layers.0.*'", "the tensors of one layer"},
      {"sidestep inspect model.safetensors --manifest sums.json", "checksums of the files"}}},
    {"save",
     "reach verify quiet",
     {{"sidestep save model.gguf model.safetensors --verify", "another format, compared byte by byte"},
      {"sidestep save model.safetensors folder --shard-size 5GB",
       "several files and their index, in a folder that is there"},
      {"sidestep save w=shared:weights,dtype=bf16,shape=4096x4096 w.safetensors",
       "memory that a program publishes"}}},
    {"repair", "quiet", {{"sidestep repair checkpoints/step-1000", "after a save there was killed"}}},
    {"run",
     "machine quiet",
     {{"sidestep run -n gpus -- python3 train.py", "an NCCL program, a process for each GPU"},
      {"sidestep run -- python3 serve.py",
       "a program that starts its own ranks, or reads files with cuFile"}}},
    {"ps", "", {{"sidestep ps", "the groups that run now"}, {"sidestep ps --watch 2", "every two seconds"}}},
    {"cufile", "", {{"sidestep cufile stats", "of all programs that run over Sidestep's cuFile"}}},
    {"cufile stats",
     "",
     {{"sidestep cufile stats", "of all programs of this user"},
      {"sidestep cufile stats 4711 --json", "of one process, as JSON"}}},
    {"publish",
     "machine quiet",
     {{"sidestep publish gpu:0 weights --size 1GiB", "until Ctrl-C; others copy shared:weights"}}},
    {"serve",
     "reach quiet",
     {{"sidestep serve --allow file:/data", "files below /data, to programs of this machine"},
      {"sidestep serve --listen 0.0.0.0:47900 --allow 'gpu:*'", "all GPUs, to other machines"}}},
    {"topo",
     "reach quiet",
     {{"sidestep topo --output machine.svg", "a drawing"},
      {"sidestep topo --format xml --output topo.xml", "a file for NCCL_TOPO_FILE"},
      {"sidestep topo --record folder", "everything that --machine needs elsewhere"}}},
    {"topo diff", "quiet", {{"sidestep topo diff dgx-a100 dgx-h100", "two machines"}}},
    {"machines", "", {{"sidestep machines", "what --machine takes by name"}}},
    {"doctor",
     "reach",
     {{"sidestep doctor", "why is a path slow here?"},
      {"sidestep doctor --machine dgx-h100 --fault gpu:3.width=8", "a sick machine to try"},
      {"sidestep doctor --probe", "copies between all GPUs too, and checks the bytes"}}},
    {"bench",
     "machine",
     {{"sidestep bench --save report.json --html report.html", "all cases"},
      {"sidestep bench --case host_link --gpu 0", "one case on one GPU"}}},
    {"bench compare", "", {{"sidestep bench compare before.json after.json", "what changed beyond noise"}}},
    {"bench page", "", {{"sidestep bench page report.json report.html", "a page to look at"}}},
    {"bench collective",
     "machine quiet smoke size gpu no-verify thresholds save html",
     {{"sidestep bench collective all_reduce -b 8 -e 1MiB", "one operation, from 8 bytes to 1 MiB"}}},
    {"bench net",
     "reach smoke samples size gpu no-verify thresholds save html",
     {{"sidestep bench net node7", "copies to a node and back"},
      {"sidestep bench net node7 node8", "from one node to another and back, past this machine"}}},
    {"tune",
     "machine",
     {{"sidestep tune --to tuning.json", "figures that groups use by SIDESTEP_TUNING=tuning.json"}}},
    {"help",
     "",
     {{"sidestep help topo diff", "the help of a command"},
      {"sidestep help --man man1", "man pages of all commands into a folder"}}},
    {"completion",
     "",
     {{"source <(sidestep completion bash)", "in bash"},
      {"sidestep completion zsh > \"${fpath[1]}/_sidestep\"", "in zsh"},
      {"sidestep completion fish | source", "in fish"}}},
};

bool has_word(std::string_view words, std::string_view word) {
    std::istringstream in{std::string(words)};
    for (std::string one; in >> one;)
        if (one == word) return true;
    return false;
}

std::string long_name(const CLI::Option& option) {
    return option.get_lnames().empty() ? std::string() : option.get_lnames().front();
}

bool follows(const Manual& manual, const CLI::Option& option) {
    const std::string name = long_name(option);
    if (name.empty()) return false;
    if ((name == "as" || name == "fault") && has_word(manual.follows, "machine")) return true;
    return has_word(always, name) || has_word(manual.follows, name) ||
           (has_word(manual.follows, "reach") && has_word(reach, name));
}

}  // namespace

std::string name_of(const CLI::App& app) {
    if (app.get_parent() == nullptr) return "";
    const std::string above = name_of(*app.get_parent());
    return above.empty() ? app.get_name() : above + " " + app.get_name();
}

const Manual& manual_of(const CLI::App& app) {
    static const Manual none{"", "", {}};
    const std::string name = name_of(app);
    const auto found = std::find_if(manuals.begin(), manuals.end(),
                                    [&](const Manual& manual) { return manual.command == name; });
    return found == manuals.end() ? none : *found;
}

std::vector<const CLI::App*> commands_below(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App* one) { return !one->get_name().empty(); });
}

const CLI::App* command_below(const CLI::App& app, const std::string& name) {
    for (const CLI::App* below : commands_below(app))
        if (below->get_name() == name) return below;
    return nullptr;
}

std::vector<const CLI::Option*> followed(const CLI::App& app) {
    std::vector<const CLI::Option*> options;
    for (const CLI::App* above = app.get_parent(); above != nullptr; above = above->get_parent())
        for (const CLI::Option* option : above->get_options())
            if (follows(manual_of(app), *option)) options.push_back(option);
    return options;
}

const CLI::Option* find_option(const CLI::App& app, std::string_view name) {
    const auto is_it = [&](const CLI::Option* option) {
        return option->nonpositional() && option->check_name(std::string(name));
    };
    for (const CLI::Option* option : app.get_options())
        if (is_it(option)) return option;
    for (const CLI::Option* option : followed(app))
        if (is_it(option)) return option;
    return nullptr;
}

std::string spelled(const CLI::Option& option) {
    std::string text;
    for (const std::string& name : option.get_snames()) text += (text.empty() ? "-" : ", -") + name;
    for (const std::string& name : option.get_lnames()) text += (text.empty() ? "--" : ", --") + name;
    if (!option.nonpositional()) text = option.get_name(true);
    if (option.get_type_size_max() > 0 && !option.get_type_name().empty())
        text += " " + option.get_type_name();
    return text;
}

std::string listed(std::string_view name, std::string_view text) {
    std::string out = fmt::format("  {:<{}}", name, text_column - 2);
    std::size_t column = out.size();
    const auto next_line = [&] {
        out += fmt::format("\n{:{}}", "", text_column);
        column = text_column;
    };
    if (column > text_column) next_line();
    while (!text.empty()) {
        const std::string_view word = text.substr(0, text.find(' '));
        text.remove_prefix(std::min(text.size(), word.size() + 1));
        if (column > text_column && column + 1 + word.size() > widest_line) next_line();
        if (column > text_column) out += ' ';
        column += word.size() + (column > text_column ? 1 : 0);
        out += word;
    }
    return out + "\n";
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool positional) const {
    std::string said = make_option_opts(option);
    said.erase(std::min(said.find(" Excludes:"), said.size()));  // a dozen names; said where two are given
    return listed(make_option_name(option, positional) + said, make_option_desc(option));
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
    return listed(command->get_name(), command->get_description());
}

std::string footer_of(const CLI::App& app) {
    std::string text;
    const auto options = followed(app);
    if (!options.empty()) text += "General options, before or after the command:\n";
    for (const CLI::Option* option : options) text += listed(spelled(*option), option->get_description());
    const Manual& manual = manual_of(app);
    std::size_t width = 0;
    for (const Example& example : manual.examples)
        width = std::max(width, std::string_view(example.line).size());
    if (!manual.examples.empty()) text += text.empty() ? "Examples:\n" : "\nExamples:\n";
    for (const Example& example : manual.examples)
        text += fmt::format("  {:<{}}  # {}\n", example.line, width, example.does);
    return text + "\n" + exit_codes;
}

std::string not_followed(const CLI::App& app) {
    for (const CLI::App* above = app.get_parent(); above != nullptr; above = above->get_parent())
        for (const CLI::Option* option : above->get_options())
            if (option->nonpositional() && option->count() > 0 && !follows(manual_of(app), *option))
                return option->get_name();
    return "";
}

}  // namespace sidestep::cli
