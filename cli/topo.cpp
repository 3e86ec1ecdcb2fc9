// sidestep topo: the machine the library sees, as text, tree, data or drawing; and what differs between two.
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sidestep/drawing.hpp>
#include <sidestep/nccl_xml.hpp>
#include <sidestep/record.hpp>
#include <sidestep/topology_diff.hpp>

#include "interrupt.hpp"
#include "report.hpp"
#include "topo_nodes.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

struct TopoCommand {
    std::string format;  // empty: by --json, the ending of --output, else text
    std::string output;
    std::string record;
    std::string theme;
    int node = 0;
    std::vector<std::string> nodes;
    CLI::App* diff = nullptr;
    std::string before;
    std::string after;
};

// The ending of a file -> what is written there unless --format says otherwise.
constexpr std::array<std::pair<std::string_view, const char*>, 7> endings = {{
    {".svg", "svg"},
    {".dot", "dot"},
    {".gv", "dot"},
    {".xml", "xml"},
    {".json", "json"},
    {".tree", "tree"},
    {".txt", "text"},
}};

Error misuse(std::string message, std::string hint) {
    return Error{ErrorCode::invalid_argument, std::move(message), "topo", std::move(hint)};
}

// A file without an ending gets text, and so does standard output.
Result<std::string> format_by_ending(const std::string& file) {
    std::string known;
    for (const auto& [ending, name] : endings) {
        if (file.ends_with(ending)) return std::string(name);
        known += fmt::format("{}{}", known.empty() ? "" : ", ", ending);
    }
    if (!std::filesystem::path(file).has_extension() || file == "-") return std::string("text");
    return misuse(fmt::format("nothing is written into files such as {}", file),
                  fmt::format("end its name in one of {}, or add --format", known));
}

Result<std::string> format_of(const TopoCommand& command, const Globals& globals) {
    std::string format = command.format;
    if (globals.json) {
        if (!format.empty() && format != "json")
            return misuse(fmt::format("--json and --format {} are two things", format),
                          "leave one of them out");
        format = "json";
    }
    if (format.empty()) {
        const auto ending = format_by_ending(command.output);
        if (!ending) return ending.error();
        format = *ending;
    }
    if (!command.theme.empty() && format != "svg")
        return misuse("--theme is for drawings in SVG", "add --format svg");
    if (command.node != 0 && format != "svg" && format != "dot")
        return misuse("--node is for drawings", "add --format svg or --format dot");
    return format;
}

Result<std::string> written(const Topology& topology, const std::string& format, const TopoCommand& command) {
    DrawOptions options;
    options.node = command.node;
    if (command.theme == "light") options.theme = Theme::light;
    if (command.theme == "dark") options.theme = Theme::dark;
    const auto of_node = [&](const Device& device) { return device.node == options.node; };
    if (options.node != 0 && std::none_of(topology.devices().begin(), topology.devices().end(), of_node))
        return Error{ErrorCode::not_found, fmt::format("there is no node{} in this machine", options.node),
                     "topo", "sidestep topo lists the machines of a cluster"};
    if (format == "tree") return draw_tree(topology);
    if (format == "pairs") return list_pairs(topology);
    if (format == "json") return topology.to_json();
    if (format == "dot") return draw_dot(topology, options);
    if (format == "svg") return draw_svg(topology, options);
    // RCCL's version for machines with AMD GPUs: see the header.
    if (format == "xml") return write_nccl_xml(topology, 1);
    return topology.to_text();
}

Result<void> record(const TopoCommand& command, const Globals& globals) {
    if (!globals.machine.empty() && globals.machine != "live")
        return misuse(fmt::format("{} cannot be recorded", globals.machine),
                      "only this machine can: leave --machine out; --format json writes others to a file");
    if (!command.nodes.empty())
        return misuse("a node is not recorded from here", "run topo --record there, and copy the folder");
    const auto words = record_machine(command.record);
    if (!words) return words.error();
    if (!globals.json) return globals.quiet ? Result<void>() : print(*words + "\n");
    const nlohmann::ordered_json object = {{"folder", command.record}, {"summary", *words}};
    return print(document(object));
}

// This machine, or the nodes that were named.
Result<std::vector<Topology>> machines_of(const TopoCommand& command, const std::string& format,
                                          const Globals& globals) {
    if (command.nodes.empty()) {
        auto topology = Topology::open(globals.machine);
        if (!topology) return topology.error();
        return std::vector{std::move(*topology)};
    }
    if (!globals.as.empty() || !globals.faults.empty())
        return misuse("--as and --fault are not for nodes", "leave them out");
    if (command.nodes.size() > 1 && (format == "xml" || format == "dot" || format == "svg"))
        return misuse(fmt::format("{} holds one machine", format), "name one node at a time");
    return topologies_of(command.nodes, globals);
}

Result<void> run_topo(const TopoCommand& command, const Globals& globals) {
    if (!command.record.empty()) return record(command, globals);
    const auto format = format_of(command, globals);
    if (!format) return format.error();
    const auto machines = machines_of(command, *format, globals);
    if (!machines) return machines.error();
    const auto text = written_together(*machines, *format == "json", [&](const Topology& topology) {
        return written(topology, *format, command);
    });
    if (!text) return text.error();
    if (!command.output.empty() && command.output != "-") return write_file(command.output, *text);
    return print(*format == "text" ? painted_report(*text, globals) : *text);
}

std::string differences_as_json(const Topology& before, const Topology& after,
                                const std::vector<Difference>& differences) {
    nlohmann::ordered_json object = {{"version", 1},
                                     {"before", before.name()},
                                     {"after", after.name()},
                                     {"same", differences.empty()},
                                     {"differences", nlohmann::ordered_json::array()}};
    for (const Difference& difference : differences)
        object["differences"].push_back({{"kind", to_string(difference.kind)},
                                         {"what", difference.what},
                                         {"aspect", difference.aspect},
                                         {"before", difference.before},
                                         {"after", difference.after},
                                         {"worse", difference.worse},
                                         {"text", to_string(difference)}});
    return document(object);
}

Result<ExitCode> run_diff(const TopoCommand& command, const Globals& globals) {
    if (!command.nodes.empty())
        return misuse(fmt::format("'{}' is one argument too many", command.nodes.front()),
                      "topo diff compares two machines");
    const auto before = Topology::open(command.before);
    if (!before) return before.error();
    const auto after = Topology::open(command.after);
    if (!after) return after.error();
    const auto differences = diff(*before, *after);
    std::string text;
    if (globals.json) {
        text = differences_as_json(*before, *after, differences);
    } else if (!globals.quiet) {
        for (const Difference& difference : differences) text += to_string(difference) + "\n";
        text += differences.empty() ? fmt::format("{} and {} are the same\n", command.before, command.after)
                                    : fmt::format("{} difference{}\n", differences.size(),
                                                  differences.size() == 1 ? "" : "s");
    }
    const auto done = print(text);
    if (!done) return done.error();
    return differences.empty() ? ExitCode::done : ExitCode::failed;
}

void define_diff(CLI::App& app, TopoCommand& command) {
    command.diff = app.add_subcommand("diff", "what differs between two machines; exit code 1 where they do");
    command.diff->fallthrough();
    command.diff->add_option("A", command.before, "the machine before: whatever --machine takes")
        ->required()
        ->type_name("");
    command.diff->add_option("B", command.after, "the machine after")->required()->type_name("");
}

}  // namespace

Action define_topo(CLI::App& app, const Globals& globals) {
    const auto command = std::make_shared<TopoCommand>();
    app.require_subcommand(0, 1);
    app.add_option("NODE", command->nodes,
                   "machines that serve, instead of this one: names of --nodes, or that the resolver knows")
        ->type_name("");
    app.add_option("--format", command->format,
                   "text: matrix and devices; tree; pairs: rates; json; xml: for NCCL_TOPO_FILE; dot: for "
                   "Graphviz; svg (default: text, or by the ending of --output)")
        ->type_name("text|tree|pairs|json|xml|dot|svg")
        ->check(CLI::IsMember({"text", "tree", "pairs", "json", "xml", "dot", "svg"}).description(""));
    app.add_option("--output", command->output, "write there instead of to standard output")
        ->type_name("FILE");
    app.add_option("--record", command->record,
                   "keep everything that is looked at on this machine in a new folder, for --machine DIR")
        ->type_name("DIR");
    app.add_option("--theme", command->theme, "of an SVG (default: what the viewer prefers)")
        ->type_name("light|dark")
        ->check(CLI::IsMember({"light", "dark"}).description(""));
    app.add_option("--node", command->node, "the machine of a cluster that is drawn in full (default: 0)")
        ->type_name("N")
        ->check(CLI::Range(0, 1'000'000).description(""));
    stands_alone(app, "--record", {"--format", "--output", "--theme", "--node"});
    define_diff(app, *command);
    return [command, &globals]() -> Result<ExitCode> {
        const Interrupt interrupt(globals);
        if (command->diff->parsed()) return run_diff(*command, globals);
        const auto result = run_topo(*command, globals);
        if (!result) return result.error();
        return ExitCode::done;
    };
}

}  // namespace sidestep::cli
