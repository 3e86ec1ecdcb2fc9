// sidestep doctor: why a fast path is off or slow, and what to type.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include <sidestep/fleet.hpp>
#include <sidestep/peer_doctor.hpp>

#include "base/try.hpp"
#include "doctor_page.hpp"
#include "interrupt.hpp"
#include "progress.hpp"
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
    std::vector<std::string> checks;
    std::string expect;
    std::string fleet;
    std::string page;
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

Result<ProbeReport> probe(const DoctorCommand& command, const Globals& globals, Interrupt& interrupt) {
    SIDESTEP_TRY(const auto context, open_context(globals));
    ProbeOptions options;
    if (command.size) options.bytes = *command.size;
    const Interrupt::Cancellable cancellable(interrupt);
    Progress progress(!globals.quiet && !globals.json);
    progress.update("copies between GPUs begin");
    Result<void> said;
    options.progress = [&](int done, int all) {
        if (done == 0)
            said = print_plan(globals, fmt::format("copying {} over each of {} pairs of GPUs, by each engine",
                                                   format_bytes(options.bytes), all));
        progress.update(fmt::format("{} of {} pairs", done, all));
        return said.ok() && !interrupt.requested();
    };
    auto report = probe_pairs(context, options);
    if (!said) return said.error();
    if (report && interrupt.requested()) {
        // What was measured is shown; a part of the pairs is not kept.
        SIDESTEP_CHECK(globals.json ? Result<void>() : print(report->to_string()));
        return Error{ErrorCode::cancelled, "interrupted: not all pairs were tried", "probe", {}};
    }
    return report;
}

ExitCode code_of(Health health) {
    switch (health) {
        case Health::well:
            return ExitCode::done;
        case Health::warnings:
            return ExitCode::warnings;
        case Health::failures:
            return ExitCode::failed;
        case Health::no_driver:
        case Health::no_gpu:
            break;
    }
    return ExitCode::no_gpu;
}

// Both ends of the way to a node.
Result<ExitCode> examine_peer(const DoctorCommand& command, const Globals& globals) {
    SIDESTEP_TRY(const auto context, open_context(globals));
    PeerDoctorOptions options;
    if (command.size) options.bytes = *command.size;
    const std::string plan = fmt::format("looking at both ends of the way to {}, with copies of {} each way",
                                         command.peer, format_bytes(options.bytes));
    SIDESTEP_CHECK(print_plan(globals, plan));
    SIDESTEP_TRY(const auto diagnosis, run_peer_doctor(context, command.peer, options));
    SIDESTEP_CHECK(print(
        painted_report(globals.json ? diagnosis.to_json() : diagnosis.to_string(command.all), globals)));
    return code_of(diagnosis.health());
}

// The page beside what is printed.
Result<void> write_page(const DoctorCommand& command, const Globals& globals, const Diagnosis& diagnosis,
                        const std::optional<ProbeReport>& probe) {
    SIDESTEP_TRY(const auto topology, Topology::open(globals.machine));
    return write_file(command.page, doctor_page(diagnosis, topology, probe));
}

// Machines that should be alike.
Result<ExitCode> examine_fleet(const std::string& folder, const Globals& globals, Interrupt& interrupt) {
    const auto fleet = [&] {
        Progress progress(!globals.quiet && !globals.json);
        return compare_machines(folder, [&](int done, int all) {
            progress.update(fmt::format("{} of {} machines", done, all));
            return !interrupt.requested();
        });
    }();
    if (!fleet) return fleet.error();
    SIDESTEP_CHECK(print(globals.json ? fleet->to_json() : fleet->to_string()));
    return fleet->odd.empty() ? ExitCode::done : ExitCode::warnings;
}

Result<ExitCode> run_doctor_verb(const DoctorCommand& command, const Globals& globals) {
    if (!command.pages.empty()) {
        SIDESTEP_CHECK(write_pages(command.pages));
        return ExitCode::done;
    }
    if (command.size && *command.size == 0)
        return Error{ErrorCode::invalid_argument, "a copy of no bytes shows nothing", "--size", {}};
    Interrupt interrupt(globals);
    if (!command.fleet.empty()) return examine_fleet(command.fleet, globals, interrupt);
    if (!command.peer.empty()) return examine_peer(command, globals);
    if (!command.save.empty() && !command.probe)
        return Error{ErrorCode::invalid_argument, "--save keeps what --probe finds", {}, "add --probe"};
    if (command.size && !command.probe)
        return Error{ErrorCode::invalid_argument,
                     "--size is of the copies of --probe and --peer",
                     {},
                     "add one of them"};
    for (const std::string& path : {command.save, command.page}) SIDESTEP_CHECK(can_be_written(path));
    DoctorOptions options;
    options.machine = globals.machine;
    options.checks = command.checks;
    options.expect = command.expect;
    Result<void> saved, drawn;  // a failure is told last: nothing that was found is lost
    if (command.probe) {
        // Checks and machines that are not there are refused before copies that take long.
        SIDESTEP_CHECK(run_doctor(options));
        SIDESTEP_TRY(auto report, probe(command, globals, interrupt));
        if (!command.save.empty()) saved = write_file(command.save, report.to_json());
        options.probe = std::move(report);
    }
    SIDESTEP_TRY(const auto diagnosis, run_doctor(options));
    if (!command.page.empty()) drawn = write_page(command, globals, diagnosis, options.probe);
    // With a single check the user wants every detail of it.
    const bool everything = command.all || !command.checks.empty();
    std::string text = globals.json ? diagnosis.to_json() : diagnosis.to_string(everything);
    if (options.probe && !globals.json) text += "\n" + options.probe->to_string();
    SIDESTEP_CHECK(print(painted_report(text, globals)));
    if (!saved) return saved.error();
    if (!drawn) return drawn.error();
    return code_of(diagnosis.health());
}

}  // namespace

Action define_doctor(CLI::App& app, const Globals& globals) {
    const auto command = std::make_shared<DoctorCommand>();
    app.add_option("CHECK", command->checks, "the checks to make, by name (default: all)")->type_name("");
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
    app.add_option("--html", command->page,
                   "write one page of HTML too: what was found, the drawing of the machine, and what --probe "
                   "measured")
        ->type_name("FILE");
    app.add_option("--fleet", command->fleet,
                   "compare the records and topology files in a folder: which machine is not like the others")
        ->type_name("DIR");
    app.add_option("--expect", command->expect,
                   "what the machine should be: whatever --machine takes; each difference fails")
        ->type_name("MACHINE");
    app.add_flag("--all", command->all, "show the evidence of what passes too");
    app.add_option("--pages", command->pages,
                   "write the page of every check into a folder, and look at nothing")
        ->type_name("DIR");
    stands_alone(
        app, "--pages",
        {"CHECK", "--probe", "--size", "--peer", "--save", "--html", "--fleet", "--expect", "--all"});
    stands_alone(app, "--fleet",
                 {"CHECK", "--probe", "--size", "--peer", "--save", "--html", "--expect", "--all"});
    stands_alone(app, "--peer", {"CHECK", "--probe", "--save", "--html", "--expect"});
    return [command, &globals] { return run_doctor_verb(*command, globals); };
}

}  // namespace sidestep::cli
