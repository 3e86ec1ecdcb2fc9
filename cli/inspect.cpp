// sidestep inspect CHECKPOINT: the tensors of a checkpoint, without their data; and checksums of its files.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sidestep/checkpoint.hpp>

#include "base/try.hpp"
#include "interrupt.hpp"
#include "operand.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

struct InspectCommand {
    std::vector<std::string> paths;
    std::vector<std::string> only;
    bool lenient = false;
    std::string manifest;         // to be written
    std::string verify_manifest;  // to be read
};

Result<void> check_use(const InspectCommand& command) {
    const bool writes = !command.manifest.empty();
    const bool reads = !command.verify_manifest.empty();
    if (writes && reads)
        return Error{ErrorCode::invalid_argument,
                     "--manifest writes a manifest and --verify-manifest checks one", "inspect",
                     "leave one of them out"};
    if ((writes || reads) && !command.only.empty())
        return Error{ErrorCode::invalid_argument, "a manifest is of whole files", "inspect",
                     "leave --only out"};
    return {};
}

Result<ManifestRun> run_manifest(const InspectCommand& command, const Globals& globals,
                                 const Checkpoint& checkpoint, Interrupt& interrupt) {
    const Interrupt::Cancellable cancellable(interrupt);
    Progress progress(!globals.quiet && !globals.json);
    std::optional<Result<void>> said;
    const auto look = [&](Bytes done, Bytes total) {
        if (!said) {
            said = print_plan(
                globals, fmt::format("reading {}: {}", in_words(command.paths), checkpoint.summary()), total);
            if (!*said) return false;
        }
        progress.update(done, total);
        return !interrupt.requested();
    };
    auto run = command.manifest.empty() ? checkpoint.verify_manifest(command.verify_manifest, look)
                                        : checkpoint.write_manifest(command.manifest, look);
    if (said && !*said) return said->error();
    return run;
}

Result<void> print_manifest(const InspectCommand& command, const Globals& globals,
                            const Checkpoint& checkpoint, const ManifestRun& run) {
    const bool writes = !command.manifest.empty();
    const std::string& file = writes ? command.manifest : command.verify_manifest;
    if (globals.json) {
        const nlohmann::ordered_json object = {{"version", 1},
                                               {"manifest", file},
                                               {"verified", !writes},
                                               {"bytes", run.bytes},
                                               {"blocks", run.blocks},
                                               {"seconds", run.seconds},
                                               {"gb_per_s", run.gb_per_s()}};
        return print(document(object));
    }
    if (globals.quiet) return {};
    const std::size_t files = checkpoint.files().size();
    return print(
        fmt::format("{} {}: {} block{}, {} in {} file{}, read in {} ({})\n",
                    writes ? "wrote" : "as the manifest says:", writes ? file : in_words(command.paths),
                    run.blocks, run.blocks == 1 ? "" : "s", format_bytes(run.bytes), files,
                    files == 1 ? "" : "s", format_seconds(run.seconds), format_rate(run.gb_per_s())));
}

// Only files of a node need a machine.
Result<Checkpoint> open_checkpoint(const InspectCommand& command, const Globals& globals) {
    CheckpointOptions options;
    options.lenient = command.lenient;
    const bool far = std::any_of(command.paths.begin(), command.paths.end(), [](const std::string& path) {
        const auto place = Place::parse(path);
        return place && place->is_file() && !place->node().empty();
    });
    if (!far) return Checkpoint::open(checkpoint_paths(command.paths), options);
    SIDESTEP_TRY(const auto context, open_context(globals));
    return Checkpoint::open(context, checkpoint_paths(command.paths), options);
}

Result<void> run_inspect(const InspectCommand& command, const Globals& globals) {
    SIDESTEP_CHECK(check_use(command));
    Interrupt interrupt(globals);
    SIDESTEP_TRY(auto checkpoint, open_checkpoint(command, globals));
    if (!command.manifest.empty() || !command.verify_manifest.empty()) {
        SIDESTEP_TRY(const auto run, run_manifest(command, globals, checkpoint, interrupt));
        if (!globals.quiet)
            for (const std::string& note : checkpoint.notes()) print_note(note, globals.color);
        return print_manifest(command, globals, checkpoint, run);
    }
    if (!command.only.empty()) {
        SIDESTEP_TRY(auto picked, checkpoint.only(command.only));
        checkpoint = std::move(picked);
    }
    return print(globals.json ? checkpoint.to_json() : checkpoint.to_text());
}

}  // namespace

Action define_inspect(CLI::App& app, const Globals& globals) {
    const auto command = std::make_shared<InspectCommand>();
    app.add_option(
           "CHECKPOINT", command->paths,
           "a .safetensors or .gguf file, several that belong together, a "
           "model.safetensors.index.json, or a folder with them; NODE/file:/PATH: a file or an index of "
           "a node; s3://BUCKET/KEY: of a store")
        ->required()
        ->type_name("");
    app.add_option(
           "--only", command->only,
           "only tensors whose name fits, such as 'model.layers.0.*'; '!...' takes names out; repeatable")
        ->type_name("PATTERN")
        ->allow_extra_args(false);
    app.add_flag("--lenient", command->lenient,
                 "take bytes behind the last tensor for padding, tensors of unknown types for raw bytes, and "
                 "leave out "
                 "tensors that the index does not name");
    app.add_option("--manifest", command->manifest, "read the files and write their checksums there")
        ->type_name("FILE");
    app.add_option("--verify-manifest", command->verify_manifest,
                   "read the files and compare them with these checksums")
        ->type_name("FILE");
    return done_or_fails([command, &globals] { return run_inspect(*command, globals); });
}

}  // namespace sidestep::cli
