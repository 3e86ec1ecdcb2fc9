// sidestep load CHECKPOINT: a model to the memory of GPUs, and where the time went.
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/try.hpp"
#include "interrupt.hpp"
#include "operand.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct LoadCommand {
    std::vector<std::string> paths;
    std::string to = "gpu:0";
    std::string layout;  // empty: axis where there are rules, else replicate
    std::string shard;
    std::vector<std::string> only;
    std::string manifest;
    bool lenient = false;
    LimitFlags limits;
};

// "gpu:0,gpu:1", "gpu:all", "host".
Result<std::vector<Place>> parse_places(const std::string& text, const Topology& topology) {
    std::vector<Place> places;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t end = std::min(text.find(',', at), text.size());
        const std::string word = text.substr(at, end - at);
        at = end + 1;
        if (word == "gpu:all") {
            // Where there is none, the first is refused with the reason.
            const auto named = static_cast<std::ptrdiff_t>(places.size());
            for (const Device& device : topology.devices())
                if (device.kind == DeviceKind::gpu) places.push_back(Place::gpu(device.index));
            if (topology.gpu_count() == 0) places.push_back(Place::gpu(0));
            std::sort(places.begin() + named, places.end());
            continue;
        }
        auto place = Place::parse(word);
        if (!place) {
            Error error = place.error();
            error.hint = "a load goes to gpu:N, gpu:all, host or host:N, or to several of them with commas";
            return bad_place(word, std::move(error), "--to");
        }
        places.push_back(std::move(*place));
    }
    return places;
}

Result<LoadOptions> load_options(const Globals& globals, const LoadCommand& command,
                                 const Topology& topology) {
    LoadOptions options;
    SIDESTEP_TRY(auto places, parse_places(command.to, topology));
    options.to = std::move(places);
    if (!command.shard.empty()) {
        SIDESTEP_TRY(auto rules, read_shard_rules(command.shard));
        options.rules = std::move(rules);
        options.layout = Layout::by_axis;
    }
    if (command.layout == "replicate") options.layout = Layout::replicate;
    if (command.layout == "tensor") options.layout = Layout::by_tensor;
    if (command.layout == "axis") options.layout = Layout::by_axis;
    options.manifest = command.manifest;
    command.limits.set(globals, options);
    return options;
}

Result<Checkpoint> open_checkpoint(const Context& context, const LoadCommand& command) {
    CheckpointOptions options;
    options.lenient = command.lenient;
    options.deadline = command.limits.deadline;
    auto checkpoint = Checkpoint::open(context, checkpoint_paths(command.paths), options);
    if (!checkpoint || command.only.empty()) return checkpoint;
    return checkpoint->only(command.only);
}

Json stages_of(const Receipt& receipt) {
    Json stages = Json::array();
    for (const Stage& stage : receipt.stages)
        stages.push_back({{"name", stage.name},
                          {"bytes", stage.bytes},
                          {"gb_per_s", stage.gb_per_s()},
                          {"busy_seconds", stage.busy_seconds},
                          {"limit_seconds", stage.limit_seconds}});
    return stages;
}

std::string json_of(const LoadCommand& command, const Checkpoint& checkpoint, const Loaded& loaded) {
    const Receipt& receipt = loaded.receipt();
    Json places = Json::array();
    for (const Place& place : loaded.places()) {
        Bytes bytes = 0;
        for (const LoadedTensor& tensor : loaded.tensors(place)) bytes += tensor.buffer.size();
        places.push_back(
            {{"place", place.to_string()}, {"tensors", loaded.tensors(place).size()}, {"bytes", bytes}});
    }
    const double rate =
        receipt.seconds > 0 ? static_cast<double>(loaded.file_bytes()) / receipt.seconds / 1e9 : 0;
    Json object = {{"version", 1},
                   {"checkpoint", in_words(command.paths)},
                   {"tensors", checkpoint.tensors().size()},
                   {"file_bytes", loaded.file_bytes()},
                   {"bytes", receipt.bytes},
                   {"seconds", receipt.seconds},
                   {"gb_per_s", rate},
                   {"verified", receipt.verified},
                   {"verify_seconds", receipt.verify_seconds},
                   {"places", std::move(places)},
                   {"storage",
                    {{"gpu_direct", receipt.storage.gpu_direct},
                     {"o_direct", receipt.storage.o_direct},
                     {"page_cache", receipt.storage.page_cache},
                     {"misses", receipt.storage.misses}}},
                   {"stages", stages_of(receipt)},
                   {"limit", loaded.limit()},
                   {"faster", loaded.faster()},
                   {"notes", receipt.notes}};
    if (receipt.route) object["route"] = Json::parse(receipt.route->to_json());
    return document(object);
}

Result<void> run_load(const Globals& globals, const LoadCommand& command) {
    Interrupt interrupt(globals);
    SIDESTEP_TRY(const auto context, open_context(globals));
    note_lenders(context, globals);
    SIDESTEP_TRY(auto options, load_options(globals, command, context.topology()));
    const auto begin = std::chrono::steady_clock::now();
    SIDESTEP_TRY(const auto checkpoint, open_checkpoint(context, command));
    const auto gone = std::chrono::steady_clock::now() - begin;
    if (options.deadline.count() > 0)
        options.deadline =
            std::max(options.deadline - std::chrono::duration_cast<std::chrono::milliseconds>(gone),
                     std::chrono::milliseconds(1));
    const std::string plan =
        fmt::format("loading {} to {}: {}", in_words(command.paths), command.to, checkpoint.summary());
    const auto loaded = watch(
        interrupt, !globals.quiet && !globals.json, [&] { return context.load(checkpoint, options); },
        options.verify ? "verifying" : "finishing",
        [&] { return print_plan(globals, plan, checkpoint.bytes()); });
    if (!loaded) return loaded.error();
    if (interrupt.requested()) return Error{ErrorCode::cancelled, "interrupted", {}, {}};
    if (globals.json) return print(json_of(command, checkpoint, *loaded));
    if (globals.quiet) return {};
    return print(loaded->report());
}

void add_load_flags(CLI::App& app, const std::shared_ptr<LoadCommand>& command) {
    app.add_option("--to", command->to,
                   "gpu:N, gpu:all, host or host:N, several with commas (default: gpu:0)")
        ->type_name("PLACES");
    app.add_option("--layout", command->layout,
                   "replicate: all tensors on every place; tensor: each on one of them; axis: cut by the "
                   "rules of --shard "
                   "(default: axis with --shard, else replicate)")
        ->type_name("replicate|tensor|axis")
        ->check(CLI::IsMember({"replicate", "tensor", "axis"}).description(""));
    app.add_option("--shard", command->shard, "which tensors are cut along which axis, as JSON")
        ->type_name("FILE");
    app.add_option("--only", command->only,
                   "load tensors whose names fit, such as 'model.layers.0.*' or '!*.bias'; may be repeated")
        ->type_name("PATTERN")
        ->allow_extra_args(false);
    app.add_option("--manifest", command->manifest, "compare the bytes with these checksums as they pass")
        ->type_name("FILE");
    app.add_flag("--lenient", command->lenient,
                 "take padding and unknown types, and leave out tensors that the index does not name, "
                 "instead of refusing");
    add_limit_flags(app, command->limits);
}

}  // namespace

Action define_load(CLI::App& app, const Globals& globals) {
    auto command = std::make_shared<LoadCommand>();
    app.add_option("CHECKPOINT", command->paths,
                   "a .safetensors or .gguf file, several that belong together, a "
                   "model.safetensors.index.json, or a folder with them; NODE/file:/PATH: a file or an index "
                   "of a node; s3://BUCKET/KEY: of a store")
        ->required()
        ->type_name("");
    add_load_flags(app, command);
    return done_or_fails([command, &globals] { return run_load(globals, *command); });
}

}  // namespace sidestep::cli
