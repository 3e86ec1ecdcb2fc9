// sidestep doctor: why a fast path is off or slow, and what to type.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include <sidestep/peer_doctor.hpp>

#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

struct DoctorCommand {
    bool probe = false;
    bool all = false;
    std::optional<Bytes> size;
    std::string save;
    std::string pages;
    std::string peer;
};

Result<void> write_pages(const std::string& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    for (const DoctorPage& page : doctor_pages()) {
        const auto written = write_file(fmt::format("{}/{}.md", folder, page.id), page.text);
        if (!written) return written;
    }
    return {};
}

Result<ProbeReport> probe(const DoctorCommand& command, const Globals& globals) {
    const auto context = open_context(globals);
    if (!context) return context.error();
    ProbeOptions options;
    if (command.size) options.bytes = *command.size;
    auto report = probe_pairs(*context, options);
    if (!report || command.save.empty()) return report;
    const auto saved = write_file(command.save, report->to_json());
    if (!saved) return saved.error();
    return report;
}

// The worst finding decides: 1 where something fails, 4 where something warns.
ExitCode worst(const Diagnosis& diagnosis) {
    if (diagnosis.count(Verdict::fail) > 0) return ExitCode::failed;
    return diagnosis.count(Verdict::warn) > 0 ? ExitCode::warnings : ExitCode::done;
}

Result<ExitCode> print_probe(const ProbeReport& report, const Globals& globals) {
    const auto printed = print(globals.json ? report.to_json() : report.to_string());
    if (!printed) return printed.error();
    const bool intact = std::all_of(report.pairs.begin(), report.pairs.end(),
                                    [](const PairProbe& pair) { return pair.intact; });
    return intact ? ExitCode::done : ExitCode::failed;
}

// Both ends of the way to a node.
Result<ExitCode> examine_peer(const DoctorCommand& command, const Globals& globals) {
    if (command.probe || !command.save.empty())
        return Error{ErrorCode::invalid_argument,
                     "--peer looks at two machines, --probe at GPUs of one",
                     {},
                     "leave one of them out"};
    const auto context = open_context(globals);
    if (!context) return context.error();
    PeerDoctorOptions options;
    if (command.size) options.bytes = *command.size;
    const auto diagnosis = run_peer_doctor(*context, command.peer, options);
    if (!diagnosis) return diagnosis.error();
    const auto printed = print(
        painted_report(globals.json ? diagnosis->to_json() : diagnosis->to_string(command.all), globals));
    if (!printed) return printed.error();
    return worst(*diagnosis);
}

Result<ExitCode> run_doctor_verb(const DoctorCommand& command, const Globals& globals) {
    if (!command.pages.empty()) {
        const auto written = write_pages(command.pages);
        if (!written) return written.error();
        return ExitCode::done;
    }
    if (!command.peer.empty()) return examine_peer(command, globals);
    if (!command.save.empty() && !command.probe)
        return Error{ErrorCode::invalid_argument, "--save keeps what --probe finds", {}, "add --probe"};
    DoctorOptions options;
    options.machine = globals.machine;
    if (command.probe) {
        auto report = probe(command, globals);
        if (!report) return report.error();
        options.probe = std::move(*report);
    }
    const auto diagnosis = run_doctor(options);
    // A modelled machine has pairs to try, and nothing else to examine.
    const bool modelled = !diagnosis && diagnosis.error().code == ErrorCode::unsupported;
    if (modelled && options.probe) return print_probe(*options.probe, globals);
    if (!diagnosis) return diagnosis.error();
    std::string text = globals.json ? diagnosis->to_json() : diagnosis->to_string(command.all);
    if (options.probe && !globals.json) text += "\n" + options.probe->to_string();
    const auto printed = print(painted_report(text, globals));
    if (!printed) return printed.error();
    return worst(*diagnosis);
}

}  // namespace

Action define_doctor(CLI::App& app, const Globals& globals) {
    const auto command = std::make_shared<DoctorCommand>();
    app.add_flag("--probe", command->probe,
                 "copy and check real bytes between every two GPUs, each way, and time them");
    add_bytes(
        app, "--size", [command](Bytes value) { command->size = value; },
        "bytes of one copy of the probe (default: 64MiB), or to the node of --peer (default: 16MiB)");
    app.add_option(
           "--peer", command->peer,
           "look at the way to a node that serves, from both ends, and copy real bytes there and back")
        ->type_name("NODE");
    app.add_option("--save", command->save, "keep what the probe found, for SIDESTEP_PROBE_FILE")
        ->type_name("FILE");
    app.add_flag("--all", command->all, "show the evidence of what passes too");
    app.add_option("--pages", command->pages,
                   "write the page of every check into a folder, and look at nothing")
        ->type_name("DIR");
    return [command, &globals] { return run_doctor_verb(*command, globals); };
}

}  // namespace sidestep::cli
