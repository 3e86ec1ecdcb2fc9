// sidestep save SOURCE... DESTINATION: a checkpoint, or tensors in places, as safetensors files, in as many of them as are
// asked for.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/try.hpp"
#include "interrupt.hpp"
#include "operand.hpp"
#include "placed_tensors.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "verb.hpp"

namespace sidestep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct SaveCommand {
    std::vector<std::string> words;  // all but the last are the sources
    std::vector<std::string> sources;
    std::string destination;
    std::vector<std::string> only;
    Bytes shard_size = 0;    // 0: one file
    std::size_t shards = 0;  // 0: as many as shard_size makes
    bool manifest = false;
    bool sync = false;
    bool no_sync_replaced = false;
    LimitFlags limits;
};

// Of quantised GGUF tensors the format of the target has no type.
Result<void> check_types(const Checkpoint& checkpoint) {
    const auto other = [](const TensorInfo& tensor) { return tensor.dtype == Dtype::other; };
    const auto& tensors = checkpoint.tensors();
    const auto first = std::find_if(tensors.begin(), tensors.end(), other);
    if (first == tensors.end()) return {};
    const auto count = std::count_if(first, tensors.end(), other);
    return Error{
        ErrorCode::unsupported,
        fmt::format("tensor {} is of type {}, which safetensors does not have{}", first->name,
                    first->type_name,
                    count > 1 ? fmt::format("; so are {} more of such types", count - 1) : ""),
        "save",
        "save F32, F16, BF16, F64 and I8 to I64 as they are: take the others out with --only, or convert "
        "them with the program that made the file"};
}

bool is_gguf(const Checkpoint& checkpoint) {
    return checkpoint.files().front().path.ends_with(".gguf");
}

// Without what tells of the files that are read, which are not those that are written.
std::vector<std::pair<std::string, std::string>> metadata_of(const Checkpoint& checkpoint) {
    auto pairs = checkpoint.metadata();
    const bool gguf = is_gguf(checkpoint);
    std::erase_if(pairs, [gguf](const auto& pair) {
        return pair.first == "index.total_size" || (gguf && pair.first.starts_with("split."));
    });
    return pairs;
}

// The values of GGUF that are lists are told as type and length alone: "string[32000]".
std::optional<std::string> note_of_lists(const Checkpoint& checkpoint) {
    if (!is_gguf(checkpoint)) return std::nullopt;
    const auto lists =
        std::count_if(checkpoint.metadata().begin(), checkpoint.metadata().end(), [](const auto& pair) {
            const std::size_t bracket = pair.second.find('[');
            return bracket != std::string::npos && bracket > 0 && pair.second.ends_with(']') &&
                   pair.second.find_first_not_of("0123456789", bracket + 1) == pair.second.size() - 1;
        });
    if (lists == 0) return std::nullopt;
    return fmt::format(
        "{} lists of the metadata, such as the words of a tokenizer, are kept as type and length alone",
        lists);
}

// Files that tensors of these sizes fill, as Context::save divides them.
std::size_t files_for(const std::vector<TensorToSave>& tensors, Bytes shard_bytes) {
    if (shard_bytes == 0) return 1;
    std::size_t files = 1;
    Bytes held = 0;
    bool any = false;
    for (const TensorToSave& tensor : tensors) {
        const Bytes bytes = tensor.data.size();
        if (any && (held >= shard_bytes || bytes > shard_bytes - held)) {
            ++files;
            held = 0;
        }
        any = true;
        held += bytes;
    }
    return files;
}

// The least size of a file with which there are no more files than that.
Bytes size_for(const std::vector<TensorToSave>& tensors, std::size_t shards) {
    Bytes enough = 1;
    for (const TensorToSave& tensor : tensors) enough += tensor.data.size();
    for (Bytes little = 0; little + 1 < enough;) {
        const Bytes middle = little + (enough - little) / 2;
        (files_for(tensors, middle) <= shards ? enough : little) = middle;
    }
    return enough;
}

Result<std::string> path_of(const SaveCommand& command) {
    const auto place = Place::parse(command.destination);
    if (place && (!place->is_file() || !place->node().empty()))
        return Error{ErrorCode::unsupported, "a checkpoint is saved to files of this machine",
                     command.destination,
                     place->node().empty() ? "a file of that name is ./" + command.destination
                                           : "give the path of a file or folder here"};
    const std::string path = place ? place->path() : command.destination;
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(path, ignored);
    if (!folder || command.shard_size > 0 || command.shards > 0) return path;
    return (std::filesystem::path(path) / "model.safetensors").string();
}

std::vector<TensorToSave> tensors_of(const Checkpoint& checkpoint) {
    std::vector<TensorToSave> tensors;
    for (const TensorInfo& tensor : checkpoint.tensors()) {
        const CheckpointFile& file = checkpoint.files()[tensor.file];
        tensors.push_back({tensor.name, tensor.dtype, tensor.shape,
                           Buffer::file(file.path, tensor.offset, tensor.bytes).on(file.node)});
    }
    return tensors;
}

SaveOptions save_options(const Globals& globals, const SaveCommand& command,
                         const std::vector<TensorToSave>& tensors) {
    SaveOptions options;
    options.shard_bytes = command.shards > 0 ? size_for(tensors, command.shards) : command.shard_size;
    options.manifest = command.manifest;
    options.sync_file = options.sync_file || command.sync;
    options.sync_replaced = !command.no_sync_replaced;
    command.limits.set(globals, options);
    return options;
}

// Files that were opened are still what their headers said. Those of a node are looked at by the save alone.
Result<void> check_files(const Checkpoint& checkpoint) {
    for (std::size_t file = 0; file < checkpoint.files().size(); ++file) {
        if (!checkpoint.files()[file].node.empty()) continue;
        SIDESTEP_CHECK(checkpoint.check_file(file));
    }
    return {};
}

std::string text_of(const SaveCommand& command, std::size_t tensors, std::size_t files,
                    const Receipt& receipt) {
    const auto count = [](std::size_t number, const char* what) {
        return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
    };
    std::string text =
        fmt::format("{} of {} to {} ({}): {}\n", count(tensors, "tensor"), in_words(command.sources),
                    command.destination, count(files, "file"), receipt.summary());
    for (const Stage& stage : receipt.stages)
        text += fmt::format("{:<12} {:>11} {:>15}\n", stage.name, format_bytes(stage.bytes),
                            format_rate(stage.gb_per_s()));
    return text;
}

// What is saved; tensors in places are of no checkpoint.
struct Source {
    std::optional<Checkpoint> checkpoint;
    std::vector<TensorToSave> tensors;
};

Result<Checkpoint> open_checkpoint(const Context& context, const SaveCommand& command) {
    CheckpointOptions options;
    options.deadline = command.limits.deadline;
    auto checkpoint = Checkpoint::open(context, checkpoint_paths(command.sources), options);
    if (checkpoint && !command.only.empty()) checkpoint = checkpoint->only(command.only);
    if (!checkpoint) return checkpoint;
    SIDESTEP_CHECK(check_types(*checkpoint));
    SIDESTEP_CHECK(check_files(*checkpoint));
    return checkpoint;
}

Result<Source> find_source(const Context& context, const SaveCommand& command) {
    if (command.sources.size() == 1 && !is_placed_tensor(command.sources.front())) {
        SIDESTEP_TRY(auto checkpoint, open_checkpoint(context, command));
        auto tensors = tensors_of(checkpoint);
        return Source{std::move(checkpoint), std::move(tensors)};
    }
    auto tensors = placed_tensors(context, command.sources);
    if (!tensors) return tensors.error();
    if (!command.only.empty())
        return Error{ErrorCode::invalid_argument, "--only takes tensors out of a checkpoint", "--only",
                     "leave out what is not wanted"};
    return Source{std::nullopt, std::move(*tensors)};
}

// What a checkpoint has to say beside what the save says.
void add_notes(const Checkpoint& checkpoint, Receipt& receipt) {
    receipt.notes.insert(receipt.notes.begin(), checkpoint.notes().begin(), checkpoint.notes().end());
    if (auto note = note_of_lists(checkpoint)) receipt.notes.push_back(std::move(*note));
}

Result<void> report_save(const Globals& globals, const SaveCommand& command, const std::string& path,
                         std::size_t tensors, std::size_t files, const Receipt& receipt) {
    if (globals.json) {
        Json json = Json::parse(receipt.to_json());
        json["checkpoint"] = in_words(command.sources);
        json["destination"] = path;
        json["tensors"] = tensors;
        json["files"] = files;
        return print(document(json));
    }
    if (globals.quiet) return {};
    for (const std::string& note : receipt.notes) print_note(note, globals.color);
    return print(text_of(command, tensors, files, receipt));
}

Result<void> run_save(const Globals& globals, const SaveCommand& command) {
    SIDESTEP_TRY(const auto path, path_of(command));
    Interrupt interrupt(globals);
    SIDESTEP_TRY(const auto context, open_context(globals));
    SIDESTEP_TRY(const auto source, find_source(context, command));
    SaveOptions options = save_options(globals, command, source.tensors);
    if (source.checkpoint) options.metadata = metadata_of(*source.checkpoint);
    Bytes bytes = 0;
    for (const TensorToSave& tensor : source.tensors) bytes += tensor.data.size();
    const std::string plan = fmt::format("saving {} of {} to {}", format_bytes(bytes),
                                         in_words(command.sources), command.destination);
    auto receipt = watch(
        interrupt, !globals.quiet && !globals.json,
        [&] { return context.save(source.tensors, path, options); },
        options.verify ? "verifying" : "finishing", [&] { return print_plan(globals, plan, bytes); });
    if (!receipt) return receipt.error();
    if (source.checkpoint) {
        SIDESTEP_CHECK(check_files(*source.checkpoint));
        add_notes(*source.checkpoint, *receipt);
    }
    return report_save(globals, command, path, source.tensors.size(),
                       files_for(source.tensors, options.shard_bytes), *receipt);
}

}  // namespace

Action define_save(CLI::App& app, const Globals& globals) {
    auto command = std::make_shared<SaveCommand>();
    // One option: the first of two would take the last word too.
    app.add_option(
           "SOURCE... DESTINATION", command->words,
           "what to save: a .safetensors or .gguf file, a model.safetensors.index.json, or a folder "
           "with them; "
           "NODE/file:/PATH: a file, an index or a folder of a node; s3://BUCKET/KEY: of a store; or "
           "tensors, each as "
           "NAME=PLACE[,dtype=TYPE][,shape=EXTENTxEXTENT...] in a file or published memory, here or of "
           "a node. The last word is the file to write; a folder that is there gets model.safetensors, or "
           "several files and their index")
        ->required()
        ->expected(2, CLI::detail::expected_max_vector_size)
        ->type_name("");
    auto* const size = add_bytes(
        app, "--shard-size", [command](Bytes value) { command->shard_size = value; },
        "several files of at most this many bytes of tensors, such as 5GB (default: one file)");
    size->check([](const std::string& text) {
        const auto bytes = parse_bytes(text);
        return bytes && *bytes == 0 ? std::string("a file of 0 bytes holds no tensors") : std::string();
    });
    app.add_option("--shards", command->shards, "at most this many files, as equal as whole tensors allow")
        ->type_name("N")
        ->check(CLI::Range(std::size_t{1}, std::size_t{99999}).description(""))
        ->excludes(size);
    app.add_option("--only", command->only,
                   "save tensors whose names fit, such as 'model.layers.0.*' or '!*.bias'; may be repeated")
        ->type_name("PATTERN")
        ->allow_extra_args(false);
    app.add_flag("--manifest", command->manifest,
                 "write DESTINATION.manifest.json with checksums of the files");
    app.add_flag("--sync", command->sync, "flush the files to their device before they get their names");
    app.add_flag("--no-sync-replaced", command->no_sync_replaced,
                 "leave that out also where they replace earlier ones");
    add_limit_flags(app, command->limits);
    return done_or_fails([command, &globals] {
        command->destination = command->words.back();
        command->sources.assign(command->words.begin(), command->words.end() - 1);
        return run_save(globals, *command);
    });
}

}  // namespace sidestep::cli
