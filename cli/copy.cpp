// sidestep copy SRC DST: one real copy, and the quickest measurement of a path.
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/try.hpp"
#include "bench/report.hpp"
#include "interrupt.hpp"
#include "operand.hpp"
#include "pattern.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CopyCommand {
    std::string from;
    std::string to;
    CopyFlags flags;
    int repeat = 1;
    bool explain = false;
};

Error interrupted() {
    return Error{ErrorCode::cancelled, "interrupted", {}, {}};
}

// Bytes of the memory that is allocated for the copy: a file of another machine is asked for its size.
Result<Bytes> known_size(const Context& context, const Operand& from, Bytes bytes) {
    if (bytes != Buffer::whole || !from.place.is_file()) return bytes;
    return context.size(Buffer::file(from.place.path()).on(from.place.node()));
}

Result<Receipt> copy_once(const Context& context, Interrupt& interrupt, const Buffer& from, const Buffer& to,
                          const CopyOptions& options, bool bar) {
    return watch(
        interrupt, bar, [&] { return context.copy(from, to, options); },
        options.verify ? "verifying" : "finishing");
}

// The route, before bytes move. Where the planner has none, the copy says why.
Result<void> print_route(const Context& context, const Globals& globals, const CopyCommand& command,
                         const End& from, const End& to, Bytes bytes) {
    // A store or a node would be asked once more for a route of its file.
    if (bytes == Buffer::whole || (from.buffer.place().is_file() && !from.buffer.place().node().empty()))
        return print_plan(globals, fmt::format("copying {} to {}", command.from, command.to), bytes);
    const auto route = context.route(from.buffer, to.buffer, copy_options(globals, command.flags));
    if (!route) return {};
    const std::string lines = route->to_string();
    return print_plan(globals, fmt::format("{}, {}", format_bytes(bytes), lines.substr(0, lines.find('\n'))),
                      bytes);
}

// Gigabytes take seconds, in which nothing is copied yet.
Result<void> fill_end(const Context& context, const Globals& globals, const Buffer& memory, Pattern pattern) {
    Progress progress(!globals.quiet && !globals.json);
    return fill(context, memory, pattern, [&](Bytes done, Bytes total) {
        progress.update(fmt::format("filling {} of {} at {}", format_bytes(done), format_bytes(total),
                                    memory.place().to_string()));
    });
}

// The first copy over a path pays for what later ones find ready, such as peer access between two GPUs
// (0.1 s): a few bytes go ahead, so that the time shown is that of the path.
Result<void> warm_up(const Context& context, Interrupt& interrupt, const CopyOptions& options,
                     const End& from, const End& to) {
    if (!from.memory || !to.memory) return {};
    const Bytes bytes = std::min<Bytes>(from.buffer.size(), 4096);
    CopyOptions plain = options;
    plain.verify = false;
    plain.deadline = std::chrono::milliseconds(0);  // that is for what was asked for
    SIDESTEP_CHECK(
        copy_once(context, interrupt, from.buffer.slice(0, bytes), to.buffer.slice(0, bytes), plain, false));
    return {};
}

// The receipts of all runs, in the order of their times.
Result<std::vector<Receipt>> run_copies(const Context& context, Interrupt& interrupt, const Globals& globals,
                                        const CopyCommand& command, const End& from, const End& to) {
    const bool bar = !globals.quiet && !globals.json;
    std::vector<Receipt> runs;
    SIDESTEP_CHECK(warm_up(context, interrupt, copy_options(globals, command.flags), from, to));
    for (int run = 0; run < command.repeat; ++run) {
        // Fresh pages are touched before the clock runs, and what an earlier run left in the target must
        // not pass for a copy.
        if (to.memory && (run == 0 || globals.verify)) {
            SIDESTEP_CHECK(fill_end(context, globals, to.buffer, Pattern::inverse));
        }
        SIDESTEP_TRY(auto receipt, copy_once(context, interrupt, from.buffer, to.buffer,
                                             copy_options(globals, command.flags), bar));
        if (interrupt.requested()) return interrupted();
        runs.push_back(std::move(receipt));
    }
    std::sort(runs.begin(), runs.end(),
              [](const Receipt& a, const Receipt& b) { return a.seconds < b.seconds; });
    return runs;
}

// The run in the middle; of an even number the slower one there, with the time between the two.
Receipt median_of(const std::vector<Receipt>& runs) {
    bench::Samples seconds;
    for (const Receipt& run : runs) seconds.values.push_back(run.seconds);
    Receipt median = runs[runs.size() / 2];
    median.seconds = seconds.median();
    return median;
}

std::string json_of(const Receipt& median, const std::vector<Receipt>& runs) {
    Json json = Json::parse(median.to_json());
    json["runs"] = Json::array();
    for (const Receipt& run : runs)
        json["runs"].push_back({{"seconds", run.seconds}, {"gb_per_s", run.gb_per_s()}});
    return document(json);
}

std::string text_of(const Receipt& median, const std::vector<Receipt>& runs, bool explain) {
    std::string text = explain ? median.explain() : median.summary();
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (!explain && median.route && median.route->emulated)
        text += " (the rate is that of this machine's memory, not the model's)";
    if (runs.size() > 1)
        text += fmt::format("{}median of {} runs, {} to {}", explain ? "\n" : "; ", runs.size(),
                            format_rate(runs.back().gb_per_s()), format_rate(runs.front().gb_per_s()));
    return text + "\n";
}

Result<void> run_copy(const Globals& globals, const CopyCommand& command) {
    SIDESTEP_TRY(const auto from, parse_operand(command.from, "SRC"));
    SIDESTEP_TRY(const auto to, parse_operand(command.to, "DST"));
    SIDESTEP_TRY(const auto named, copy_size(from, to, command.flags));

    Interrupt interrupt(globals);
    SIDESTEP_TRY(const auto context, open_context(globals));
    note_lenders(context, globals);
    SIDESTEP_TRY(const auto bytes, known_size(context, from, named));
    SIDESTEP_TRY(const auto source, open_end(context, from, bytes));
    SIDESTEP_TRY(const auto target, open_end(context, to, bytes));
    SIDESTEP_CHECK(print_route(context, globals, command, source, target, bytes));
    if (source.memory) {
        SIDESTEP_CHECK(fill_end(context, globals, source.buffer, Pattern::known));
    }
    SIDESTEP_TRY(const auto runs, run_copies(context, interrupt, globals, command, source, target));

    const Receipt median = median_of(runs);
    if (globals.json) return print(json_of(median, runs));
    if (globals.quiet) return {};
    if (!command.explain) {
        for (const std::string& note : median.notes) print_note(note, globals.color);
    }
    return print(painted_report(text_of(median, runs, command.explain), globals));
}

}  // namespace

Action define_copy(CLI::App& app, const Globals& globals) {
    auto command = std::make_shared<CopyCommand>();
    app.add_option("SRC", command->from,
                   "where the bytes are: host, host:N, gpu:N, file:PATH[@OFFSET+SIZE], "
                   "s3://BUCKET/KEY[@OFFSET+SIZE], shared:NAME[@OFFSET+SIZE], p2pmem:BUS-ID")
        ->required()
        ->type_name("");
    app.add_option("DST", command->to, "where they go")->required()->type_name("");
    add_copy_flags(app, command->flags);
    app.add_option("--repeat", command->repeat, "copy N times and report the median run (default: 1)")
        ->type_name("N")
        ->check(CLI::Range(1, 100000).description(""));
    app.add_flag("--explain", command->explain, "print the path hop by hop, and the better paths refused");
    return done_or_fails([command, &globals] { return run_copy(globals, *command); });
}

}  // namespace sidestep::cli
