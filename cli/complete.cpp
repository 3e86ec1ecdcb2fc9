// Everything is read from the definitions of the commands: names, what follows what, and by the words behind an
// option (FILE, PLACE, light|dark) what it takes.
#include "complete.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "bench/case.hpp"
#include "bench/collective/plan.hpp"
#include "manual.hpp"

namespace sidestep::cli {
namespace {

// Where the last word stands.
struct Cursor {
    const CLI::App* app = nullptr;
    std::size_t positionals = 0;         // before it
    const CLI::Option* value = nullptr;  // the option whose value it is
    std::string machine;
    std::size_t program = 0;  // where the words of another program begin; 0: nowhere
};

class Candidates {
public:
    explicit Candidates(std::string typed) : typed_(std::move(typed)) {}

    void add(const std::string& word, std::string_view what = {}) {
        if (!word.starts_with(typed_)) return;
        text_ += before_ + word;
        if (!what.empty()) text_ += fmt::format("\t{}", what);
        text_ += '\n';
    }

    // The first `count` letters of what was typed stand as they are: "--machine=", "gpu:0,".
    void keep(std::size_t count) {
        before_ += typed_.substr(0, count);
        typed_.erase(0, count);
    }

    // Files whose names begin as typed behind `scheme`; folders end in a slash.
    void add_files(std::string_view scheme) {
        if (!typed_.starts_with(scheme)) return add(std::string(scheme));
        const std::string path = typed_.substr(scheme.size());
        const std::string folder = path.substr(0, path.rfind('/') + 1);
        std::string opened = folder.empty() ? "." : folder;
        if (const char* home = std::getenv("HOME"); home != nullptr && folder.starts_with("~/"))
            opened.replace(0, 1, home);
        std::error_code error;
        std::vector<std::string> names;
        for (std::filesystem::directory_iterator at(opened, error), end; !error && at != end;
             at.increment(error)) {
            const std::string name = at->path().filename().string();
            // Hidden ones only where a dot was typed.
            if (name.front() == '.' && path == folder) continue;
            std::error_code ignored;
            names.push_back(folder + name + (at->is_directory(ignored) ? "/" : ""));
        }
        std::sort(names.begin(), names.end());
        for (const std::string& name : names) add(std::string(scheme) + name);
    }

    const std::string& typed() const { return typed_; }
    std::string text() const { return text_; }

private:
    std::string typed_, before_, text_;
};

void add_models(Candidates& found) {
    for (const std::string& name : Topology::model_names()) found.add(name);
}

void add_machines(Candidates& found) {
    found.add("live", "this machine");
    add_models(found);
    found.add_files("");
}

// What memory there is; the machine may be one that cannot be opened.
void add_places(Candidates& found, const std::string& machine, bool several) {
    if (several) {
        const std::size_t comma = found.typed().rfind(',');
        if (comma != std::string::npos) found.keep(comma + 1);
        found.add("gpu:all");
    }
    found.add("host");
    if (const auto topology = Topology::open(machine)) {
        for (const Device& device : topology->devices()) {
            if (device.kind == DeviceKind::cpu)
                found.add(Place::host(device.index).to_string(), device.model);
            if (device.kind == DeviceKind::gpu) found.add(Place::gpu(device.index).to_string(), device.model);
        }
    }
}

void add_commands(const CLI::App& app, Candidates& found) {
    for (const CLI::App* below : commands_below(app)) found.add(below->get_name(), below->get_description());
}

// What stands for one kind of value in the help.
void add_kind(std::string_view kind, const Cursor& at, const Globals& globals, Candidates& found) {
    const std::string& machine = at.machine.empty() ? globals.machine : at.machine;
    const bool of_two_machines = name_of(*at.app) == "topo diff" && (kind == "A" || kind == "B");
    if (kind == "MODEL") return add_models(found);
    if (of_two_machines) return add_machines(found);
    if (kind == "SRC" || kind == "DST" || kind == "PLACE" || kind == "PLACES" || kind == "PLACE,...") {
        add_places(found, machine, kind == "PLACES");
        if (kind != "PLACES") found.add_files("file:");
    } else if (kind == "FILE" || kind == "DIR" || kind == "REPORT" || kind == "CHECKPOINT" || kind == "A" ||
               kind == "B") {
        found.add_files("");
    } else if (kind == "SOURCE... DESTINATION") {
        const std::size_t sign = found.typed().find('=');
        if (sign == std::string::npos) return found.add_files("");
        found.keep(sign + 1);  // a tensor's name
        found.add("shared:");
        found.add_files("file:");
    } else if (kind == "KEY") {
        for (const bench::Case& test : bench::all_cases()) found.add(test.key, test.description);
    } else if (kind == "OPERATION") {
        if (const auto all = bench::collective::parse_operations("all"))
            for (const Collective operation : *all) found.add(std::string(to_string(operation)));
    } else if (kind.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ[") == std::string_view::npos) {
        found.add(std::string(kind));
    }
}

// A type of values is written as KIND|KIND, and a word in small letters stands for itself.
void add_values(const CLI::Option& option, const Cursor& at, const Globals& globals, Candidates& found) {
    const std::string type = option.get_type_name();
    const std::string kinds = type.empty() ? option.get_name(true) : type;
    // --machine takes names and files, and offers both at once.
    if (kinds == "NAME|FILE") return add_machines(found);
    for (std::size_t begin = 0; begin <= kinds.size();) {
        const std::size_t end = std::min(kinds.find('|', begin), kinds.size());
        add_kind(std::string_view(kinds).substr(begin, end - begin), at, globals, found);
        begin = end + 1;
    }
}

void add_options(const CLI::App& app, Candidates& found) {
    const auto add = [&](const CLI::Option* option) {
        if (option->get_group().empty()) return;
        for (const std::string& name : option->get_lnames())
            found.add("--" + name, option->get_description());
        for (const std::string& name : option->get_snames()) found.add("-" + name, option->get_description());
    };
    for (const CLI::Option* option : app.get_options()) add(option);
    for (const CLI::Option* option : followed(app)) add(option);
}

const CLI::Option* positional(const CLI::App& app, std::size_t number) {
    const CLI::Option* last = nullptr;
    for (const CLI::Option* option :
         app.get_options([](const CLI::Option* o) { return !o->nonpositional(); })) {
        last = option;
        if (number-- == 0) return option;
    }
    return last != nullptr && last->get_expected_max() > 1 ? last : nullptr;
}

Cursor cursor_of(const CLI::App& program, const std::vector<std::string>& words) {
    Cursor at{&program, 0, nullptr, {}, 0};
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
        const std::string& word = words[i];
        if (word == "--" && name_of(*at.app) == "run") {
            at.program = i + 1;
            return at;
        }
        if (word.starts_with("-") && word.size() > 1) {
            const CLI::Option* option = find_option(*at.app, word.substr(0, word.find('=')));
            const bool apart = option != nullptr && option->get_expected_min() > 0 &&
                               option->get_type_size_max() > 0 && word.find('=') == std::string::npos;
            if (apart && i + 2 == words.size()) at.value = option;
            if (word.starts_with("--machine=")) at.machine = word.substr(10);
            if (apart && word == "--machine") at.machine = words[i + 1];
            if (apart) ++i;
            continue;
        }
        const CLI::App* below = at.positionals == 0 ? command_below(*at.app, word) : nullptr;
        if (below != nullptr)
            at.app = below;
        else
            ++at.positionals;
    }
    return at;
}

// `help topo d`: names of commands, one below the other.
void add_help_words(const CLI::App& program, const std::vector<std::string>& words, Candidates& found) {
    const CLI::App* app = &program;
    const auto help = std::find(words.begin(), words.end(), "help");
    for (auto word = help + 1; app != nullptr && word + 1 < words.end(); ++word)
        app = command_below(*app, *word);
    if (app != nullptr) add_commands(*app, found);
}

}  // namespace

std::string candidates(const CLI::App& program, const std::vector<std::string>& words,
                       const Globals& globals) {
    if (words.empty()) return {};
    const Cursor at = cursor_of(program, words);
    if (at.program > 0) return fmt::format(":program {}\n", at.program);
    Candidates found(words.back());
    const std::size_t sign = words.back().find('=');
    const bool long_value = words.back().starts_with("--") && sign != std::string::npos;
    const CLI::Option* value = long_value ? find_option(*at.app, words.back().substr(0, sign)) : at.value;
    if (long_value) found.keep(sign + 1);
    if (value != nullptr || long_value) {
        if (value != nullptr) add_values(*value, at, globals, found);
    } else if (words.back().starts_with("-")) {
        add_options(*at.app, found);
    } else if (name_of(*at.app) == "help") {
        add_help_words(program, words, found);
    } else {
        if (at.positionals == 0) add_commands(*at.app, found);
        if (const CLI::Option* argument = positional(*at.app, at.positionals))
            add_values(*argument, at, globals, found);
    }
    return found.text();
}

}  // namespace sidestep::cli
