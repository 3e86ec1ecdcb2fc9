// sidestep bench: every figure beside what the hardware can do.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "bench/collective/launch.hpp"
#include "bench/compare.hpp"
#include "bench/leftovers.hpp"
#include "bench/peers.hpp"
#include "bench/run.hpp"
#include "bench/text.hpp"
#include "bench/text_file.hpp"
#include "bench/thresholds.hpp"
#include "bench_collective.hpp"
#include "bench_net.hpp"
#include "interrupt.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

struct BenchCommand {
    bool list = false;
    std::vector<std::string> cases;
    bench::Options options;
    std::string sizes, gpus, from, to;
    bool no_verify = false;
    bool peers = false;
    std::string thresholds;
    std::string save;
    std::string html;
    CLI::App* compare = nullptr;
    std::string before, after;
    CLI::App* page = nullptr;
    std::string report;
    bool all = false;
    bool fail_on_regression = false;
    CollectiveCommand collective;
    NetCommand net;
};

// The words between commas; an empty text has none.
std::vector<std::string> words_of(const std::string& text) {
    std::vector<std::string> words;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        words.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return words;
}

Result<int> gpu_of(const std::string& word, const Topology& topology) {
    int gpu = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), gpu);
    if (error != std::errc{} || end != word.data() + word.size() || gpu < 0)
        return Error{ErrorCode::invalid_argument, fmt::format("'{}' is not a number of a GPU", word), "--gpu",
                     "write it as --gpu 0,1"};
    if (!topology.find(Place::gpu(gpu)))
        return Error{ErrorCode::not_found,
                     fmt::format("there is no gpu:{}; the machine has {}", gpu, topology.gpu_count()),
                     "--gpu",
                     {}};
    return gpu;
}

// The end of a copy that --from or --to names: the host, or a GPU that is there.
Result<std::optional<Place>> end_of(const std::string& text, const Context& context) {
    if (text.empty()) return std::optional<Place>();
    SIDESTEP_TRY(const auto place, Place::parse(text));
    const bool known = place == Place::host() || (place.is_gpu() && context.topology().find(place));
    if (!known)
        return Error{ErrorCode::not_found,
                     fmt::format("'{}' is not an end of a figure", text),
                     {},
                     "write host, or a GPU of the machine, as in --from host --to gpu:1"};
    return std::optional<Place>(place);
}

Result<bench::Options> options_of(const BenchCommand& command, const Context& context) {
    bench::Options options = command.options;
    options.verify = !command.no_verify;
    if (options.smoke) options.samples = 1;
    for (const std::string& word : words_of(command.sizes)) {
        const auto bytes = parse_bytes(word);
        if (!bytes) return bytes.error();
        if (*bytes == 0)
            return Error{ErrorCode::invalid_argument, "a copy of no bytes has no rate", "--size", {}};
        options.sizes.push_back(*bytes);
    }
    for (const std::string& word : words_of(command.gpus)) {
        SIDESTEP_TRY(const auto gpu, gpu_of(word, context.topology()));
        options.gpus.push_back(gpu);
    }
    const auto from = end_of(command.from, context), to = end_of(command.to, context);
    if (!from) return from.error();
    if (!to) return to.error();
    if (!options.object.empty() && !options.object.starts_with("s3://"))
        return Error{ErrorCode::invalid_argument, fmt::format("'{}' is no object of a store", options.object),
                     "--object", "write s3://BUCKET/KEY"};
    options.from = *from;
    options.to = *to;
    return options;
}

// The command line as the kernel has it, without the folder of the program.
std::string typed() {
    auto text = bench::read_text("/proc/self/cmdline", 1 << 20);
    if (!text) return "sidestep bench";
    std::replace(text->begin(), text->end(), '\0', ' ');
    text->erase(text->find_last_not_of(' ') + 1);
    const auto program = text->substr(0, text->find(' '));
    return text->substr(program.find_last_of('/') + 1);
}

bool keeps_files(const BenchCommand& command) {
    return !command.save.empty() || !command.html.empty();
}

// Figures that are to be kept are measured even if nobody reads the output any more; the last print says so.
Result<void> show(const BenchCommand& command, const Globals& globals, const std::string& text) {
    const auto printed = globals.json ? Result<void>() : print(text);
    return keeps_files(command) ? Result<void>() : printed;
}

Result<void> prepare_files(const BenchCommand& command) {
    if (keeps_files(command)) std::signal(SIGPIPE, SIG_IGN);
    const auto save = can_be_written(command.save);
    return save ? can_be_written(command.html) : save;
}

Result<void> write_files(const BenchCommand& command, const bench::Report& report) {
    Result<void> saved, drawn;
    if (!command.save.empty()) saved = write_file(command.save, report.to_json());
    if (!command.html.empty()) drawn = write_file(command.html, bench::to_html(report));
    return saved ? drawn : saved;
}

// Whatever fails, the rest is done: the figures took long. Files come first, since who reads the output may be gone.
Result<void> write_report(const BenchCommand& command, const Globals& globals, const bench::Report& report) {
    const auto written = write_files(command, report);
    const auto printed = print(globals.json ? report.to_json() : bench::tail_text(report));
    return printed ? written : printed;
}

Result<void> list(const std::vector<bench::Case>& cases, const Globals& globals) {
    if (globals.json) {
        bench::Report report;
        for (const bench::Case& test : cases)
            report.cases.push_back({test.key, test.description, {}, {}, {}, {}});
        return print(report.to_json());
    }
    std::vector<std::vector<std::string>> rows;
    for (const bench::Case& test : cases) rows.push_back({test.key, test.description});
    return print(bench::align(rows));
}

// What has been measured, for a signal, which ends the process on a thread of its own.
struct Kept {
    std::mutex mutex;
    bench::Report report;

    void put(const bench::Report& measured) {
        const std::lock_guard lock(mutex);
        report = measured;
    }
    void end(const BenchCommand& command, const Globals& globals) {
        bench::remove_leftovers();
        const std::lock_guard lock(mutex);
        if (report.cases.empty()) return;
        report.notes.emplace_back("interrupted: not all figures were measured");
        (void)write_report(command, globals, report);
    }
    // The whole report. A signal meanwhile waits, and finds nothing left to write.
    Result<void> write(const BenchCommand& command, const Globals& globals, const bench::Report& whole) {
        const std::lock_guard lock(mutex);
        report = {};
        return write_report(command, globals, whole);
    }
};

// Runs the cases and prints each as it ends.
Result<bench::Report> measure(const std::vector<bench::Case>& cases, const BenchCommand& command,
                              const Globals& globals, const std::vector<bench::Threshold>& thresholds,
                              Kept& kept) {
    SIDESTEP_TRY(const auto context, open_context(globals));
    SIDESTEP_TRY(const auto options, options_of(command, context));
    bench::Report report = bench::begin_report(context, typed());
    SIDESTEP_CHECK(show(command, globals, bench::head_text(report)));
    // With peers and thresholds a case's lines are complete only after all have run.
    const bool at_once = !command.peers && thresholds.empty();
    for (const bench::Case& test : cases) {
        report.cases.push_back(bench::run_case(test, context, options));
        kept.put(report);
        const std::string text = at_once ? bench::case_text(report.cases.back()) : "";
        SIDESTEP_CHECK(show(command, globals, text));
    }
    if (command.peers) bench::run_peers(report, context, options);
    bench::judge(report, thresholds);
    for (const bench::CaseResult& result : report.cases)
        SIDESTEP_CHECK(show(command, globals, at_once ? "" : bench::case_text(result)));
    return report;
}

bool failed(const bench::Report& report) {
    if (report.idle_thresholds > 0) return true;
    for (const bench::CaseResult& result : report.cases) {
        if (!result.failed.empty()) return true;
        for (const bench::Figure& figure : result.figures)
            if (figure.verdict == bench::Verdict::fail) return true;
    }
    return false;
}

// What --thresholds names; none without it.
Result<std::vector<bench::Threshold>> thresholds_of(const BenchCommand& command) {
    if (command.thresholds.empty()) return std::vector<bench::Threshold>{};
    return bench::load_thresholds(command.thresholds);
}

Result<ExitCode> run_bench(const BenchCommand& command, const Globals& globals) {
    SIDESTEP_TRY(const auto cases, bench::choose_cases(bench::all_cases(), command.cases));
    if (command.list) {
        SIDESTEP_CHECK(list(cases, globals));
        return ExitCode::done;
    }
    SIDESTEP_CHECK(prepare_files(command));
    SIDESTEP_TRY(const auto thresholds, thresholds_of(command));
    Kept kept;
    const Interrupt interrupt(globals, [&] { kept.end(command, globals); });
    SIDESTEP_TRY(const auto report, measure(cases, command, globals, thresholds, kept));
    SIDESTEP_CHECK(kept.write(command, globals, report));
    return failed(report) ? ExitCode::failed : ExitCode::done;
}

Result<ExitCode> run_compare(const BenchCommand& command, const Globals& globals) {
    SIDESTEP_TRY(const auto before, bench::Report::load(command.before));
    SIDESTEP_TRY(const auto after, bench::Report::load(command.after));
    const bench::Comparison comparison = bench::compare(before, after);
    SIDESTEP_CHECK(print(globals.json ? comparison.to_json() : comparison.to_text(command.all)));
    return command.fail_on_regression && comparison.regressed() ? ExitCode::failed : ExitCode::done;
}

Result<ExitCode> run_collective(const BenchCommand& command, const Globals& globals) {
    // The processes of ranks have none: they end with this one.
    std::optional<Interrupt> interrupt;
    if (command.collective.job.empty()) interrupt.emplace(globals, bench::remove_leftovers);
    SIDESTEP_TRY(const auto context, open_context(globals));
    if (!command.collective.job.empty()) {
        const auto done = bench::collective::run_job(context, command.collective.job, print);
        if (!done) return done.error();
        return ExitCode::done;
    }
    SIDESTEP_CHECK(prepare_files(command));
    SIDESTEP_TRY(const auto thresholds, thresholds_of(command));
    SIDESTEP_TRY(const auto options, options_of(command, context));
    bench::Report report = bench::begin_report(context, typed());
    bool headed = false;
    const Interrupt::Cancellable cancellable(*interrupt);
    std::optional<Progress> progress;  // until there is a row
    const CollectiveWatch watch{[&](const std::string& table) {
                                    progress.reset();
                                    return show(command, globals, table);
                                },
                                [&](const std::string& words) {
                                    auto shown =
                                        show(command, globals, headed ? "" : bench::head_text(report));
                                    headed = true;
                                    progress.emplace(!globals.quiet && !globals.json).update(words);
                                    return shown;
                                },
                                [&] { return interrupt->requested(); }};
    if (auto measured =
            measure_collectives(command.collective, machine_of(globals), context, options, watch, report);
        !measured)
        return measured.error();
    if (interrupt->requested())
        report.notes.emplace_back("interrupted: not all sizes and operations were measured");
    bench::judge(report, thresholds);
    for (const bench::CaseResult& result : report.cases)
        if (!thresholds.empty() || !result.failed.empty())
            SIDESTEP_CHECK(show(command, globals, bench::case_text(result)));
    SIDESTEP_CHECK(write_report(command, globals, report));
    if (interrupt->requested()) return ExitCode::interrupted;
    return failed(report) ? ExitCode::failed : ExitCode::done;
}

Result<ExitCode> run_net(const BenchCommand& command, const Globals& globals) {
    SIDESTEP_CHECK(prepare_files(command));
    SIDESTEP_TRY(const auto thresholds, thresholds_of(command));
    Kept kept;
    const Interrupt interrupt(globals, [&] { kept.end(command, globals); });
    SIDESTEP_TRY(const auto context, open_context(globals));
    SIDESTEP_TRY(const auto options, options_of(command, context));
    bench::Report report = bench::begin_report(context, typed());
    const auto keep = [&](const bench::Report& so_far) { kept.put(so_far); };
    const auto say = [&](const std::string& text) { return show(command, globals, text); };
    SIDESTEP_CHECK(measure_network(command.net, context, options, say, keep, report));
    bench::judge(report, thresholds);
    for (const bench::CaseResult& result : report.cases) {
        // The lines are there already; what was missed stands below them.
        const bool told = thresholds.empty() && result.failed.empty();
        SIDESTEP_CHECK(say(told ? "" : bench::case_text(result)));
    }
    SIDESTEP_CHECK(kept.write(command, globals, report));
    return failed(report) ? ExitCode::failed : ExitCode::done;
}

// The page of a report that was saved, perhaps on another machine.
Result<ExitCode> run_page(const BenchCommand& command) {
    SIDESTEP_TRY(const auto report, bench::Report::load(command.report));
    SIDESTEP_CHECK(write_file(command.html, bench::to_html(report)));
    return ExitCode::done;
}

void define_page(CLI::App& app, BenchCommand& command) {
    command.page = app.add_subcommand("page", "write the page of a saved report");
    command.page->fallthrough();
    command.page->add_option("REPORT", command.report, "the report, as --save writes it")
        ->required()
        ->type_name("");
    command.page->add_option("FILE", command.html, "the page")->required()->type_name("");
}

void define_compare(CLI::App& app, BenchCommand& command) {
    command.compare = app.add_subcommand("compare", "what changed between two reports beyond noise");
    command.compare->fallthrough();
    command.compare->add_option("A", command.before, "the report before, as --save writes it")
        ->required()
        ->type_name("");
    command.compare->add_option("B", command.after, "the report after")->required()->type_name("");
    command.compare->add_flag("--all", command.all, "list what did not change too");
    command.compare->add_flag("--fail-on-regression", command.fail_on_regression,
                              "end with exit code 1 where something got worse");
}

void define_selection(CLI::App& app, BenchCommand& command) {
    app.add_flag("--list", command.list, "list the cases");
    app.add_option("--case", command.cases,
                   "only cases whose key fits, such as host_link or 'peer_*'; repeatable")
        ->allow_extra_args(false)
        ->type_name("KEY");
    app.add_flag("--smoke", command.options.smoke,
                 "tiny sizes, one sample: only shows that every case works");
    app.add_option("--samples", command.options.samples, "samples of each figure (default: 7)")
        ->type_name("N")
        ->check(CLI::Range(1, 10'000).description(""));
    app.add_option("--size", command.sizes,
                   "bytes of a copy, such as 1GiB or 4KiB,1MiB (default: the case's)")
        ->type_name("SIZE,...");
    app.add_option("--gpu", command.gpus, "only these GPUs, such as 0,1")->type_name("N,...");
    app.add_option("--from", command.from, "only copies from here: host or gpu:N")->type_name("PLACE");
    app.add_option("--to", command.to, "only copies to here")->type_name("PLACE");
    app.add_flag("--no-verify", command.no_verify, "do not compare the bytes after the last sample");
    app.add_option("--folder", command.options.folder,
                   "where files are measured (default: the temporary folder)")
        ->type_name("DIR");
    app.add_option("--object", command.options.object,
                   "the object of an S3 store that is read for the case `object`")
        ->type_name("s3://BUCKET/KEY");
}

}  // namespace

Action define_bench(CLI::App& app, const Globals& globals) {
    const auto command = std::make_shared<BenchCommand>();
    app.require_subcommand(0, 1);
    define_selection(app, *command);
    app.add_flag(
        "--peers", command->peers,
        "run nvbandwidth, nccl-tests, perftest and fio where they are on PATH, and show their figures");
    app.add_option("--thresholds", command->thresholds,
                   "least values to reach; exit code 1 where one is missed")
        ->type_name("FILE");
    app.add_option("--save", command->save, "write the report with every sample as JSON, for compare")
        ->type_name("FILE");
    app.add_option("--html", command->html, "write the report as one page")->type_name("FILE");
    stands_alone(app, "--list",
                 {"--smoke", "--samples", "--size", "--gpu", "--from", "--to", "--no-verify", "--folder",
                  "--object", "--peers", "--thresholds", "--save", "--html"});
    define_compare(app, *command);
    define_page(app, *command);
    define_collective(app, command->collective);
    define_net(app, command->net);
    return [command, &globals]() -> Result<ExitCode> {
        if (command->page->parsed()) return run_page(*command);
        if (command->net.app->parsed()) return run_net(*command, globals);
        if (command->collective.app->parsed()) return run_collective(*command, globals);
        return command->compare->parsed() ? run_compare(*command, globals) : run_bench(*command, globals);
    };
}

}  // namespace sidestep::cli
