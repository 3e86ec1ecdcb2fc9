#include <sidestep/checkpoint.hpp>
#include <sidestep/options.hpp>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "base/deadlines.hpp"
#include "base/exception_words.hpp"
#include "base/object_store.hpp"
#include "base/try.hpp"
#include "checkpoint/block_reader.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "checkpoint/content.hpp"
#include "checkpoint/manifest_reader.hpp"
#include "checkpoint/patterns.hpp"

namespace sidestep {
namespace {

// What the standard library throws stays in here.
template <typename Value, typename Work>
Result<Value> guarded(const std::string& path, const Work& work) {
    try {
        return work();
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "there is no memory for the checkpoint's names", path, {}};
    } catch (const std::exception& error) {
        return Error{ErrorCode::internal,
                     fmt::format("the checkpoint cannot be read: {}", base::words_of(error)),
                     path,
                     {}};
    }
}

// "a", "b", "c" and 2 more.
std::string first_of(const std::vector<std::string>& texts) {
    constexpr std::size_t max = 3;
    std::string words;
    for (std::size_t i = 0; i < std::min(max, texts.size()); ++i)
        words += (i == 0 ? "" : ", ") + checkpoint::shown(texts[i]);
    return texts.size() <= max ? words : fmt::format("{} and {} more", words, texts.size() - max);
}

// A manifest knows files by their bare names.
Result<void> check_file_names(const std::vector<CheckpointFile>& files) {
    const checkpoint::NameTable::NameOf name = [&files](std::size_t i) {
        const std::string_view path = files[i].path;
        return path.substr(path.rfind('/') + 1);
    };
    for (const CheckpointFile& file : files) SIDESTEP_CHECK(checkpoint::check_listable(file.path));
    if (!checkpoint::NameTable(files.size(), name).twice(name)) return {};
    return Error{ErrorCode::unsupported, "two of the files have one name", files.front().path, {}};
}

// Differences from a manifest, as several threads find them.
struct Differences {
    std::mutex mutex;
    std::size_t count = 0;
    std::size_t file = 0;  // of the first
    Bytes offset = 0;
    std::optional<Error> first;

    void add(std::size_t in_file, Bytes at, const Error& error) {
        const std::lock_guard lock(mutex);
        ++count;
        if (first && (in_file > file || (in_file == file && at > offset))) return;
        file = in_file;
        offset = at;
        first = error;
    }
};

// The manifest takes the place of the file whose name it is given.
Result<void> check_manifest_target(const std::string& target, const std::string& opened,
                                   const std::string& index, const std::vector<CheckpointFile>& files) {
    std::error_code error;
    const auto is_target = [&](const std::string& path) {
        return std::filesystem::equivalent(target, path, error);
    };
    if (!is_target(opened) && !is_target(index) &&
        std::none_of(files.begin(), files.end(), [&](const auto& file) { return is_target(file.path); }))
        return {};
    return Error{ErrorCode::invalid_argument, "the manifest would take the place of a file of the checkpoint",
                 target, "name another file for it"};
}

// How several paths are called in errors and in what is printed.
std::string words_of(const std::vector<std::string>& paths) {
    if (paths.size() == 1) return paths.front();
    return fmt::format("{} and {} more", paths.front(), paths.size() - 1);
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& path, const CheckpointOptions& options) {
    return open(std::vector{path}, options);
}

Result<Checkpoint> Checkpoint::open(const std::vector<std::string>& paths, const CheckpointOptions& options) {
    return open_at(paths, options, nullptr);
}

Result<Checkpoint> Checkpoint::open_at(const std::vector<std::string>& paths,
                                       const CheckpointOptions& options, checkpoint::FarFilesPtr far) {
    if (paths.empty()) return Error{ErrorCode::invalid_argument, "no path of a checkpoint was given", {}, {}};
    const auto deadline = options.deadline;
    if (deadline.count() < 0 || deadline > longest_limit)
        return refused_option("deadline", fmt::format("{} ms", deadline.count()));
    return base::make_within<Checkpoint>(deadline, words_of(paths),
                                         [paths, options, far] { return read(paths, options, far); });
}

Result<void> Checkpoint::check_here(const char* what) const {
    for (const CheckpointFile& file : content_->files)
        if (!file.node.empty())
            return base::is_object(Place::file(file.path).on(file.node))
                       ? Error{ErrorCode::unsupported,
                               fmt::format("{} lies in a store: {} is done with files of a machine",
                                           file.path, what),
                               file.path, "copy it to a file first"}
                       : Error{ErrorCode::unsupported,
                               fmt::format("{} lies on {}: {} is done there", file.path, file.node, what),
                               file.path, fmt::format("run it on {}", file.node)};
    return {};
}

Result<Checkpoint> Checkpoint::read(const std::vector<std::string>& paths, const CheckpointOptions& options,
                                    const checkpoint::FarFilesPtr& far) {
    const std::string words = words_of(paths);
    const std::string path = far ? Place::file(words).on(far->node).to_string() : words;
    return guarded<Checkpoint>(path, [&]() -> Result<Checkpoint> {
        SIDESTEP_TRY(checkpoint::Headers headers, paths.size() == 1
                                                      ? checkpoint::read_headers(paths.front(), options, far)
                                                      : checkpoint::read_headers(paths, options, far));
        auto content = std::make_shared<Content>();
        content->path = path;
        content->index = std::move(headers.index);
        content->tensors = std::move(headers.tensors);
        content->files = std::move(headers.files);
        content->metadata = std::move(headers.metadata);
        content->notes = std::move(headers.notes);
        content->finish();
        if (const auto twice = content->names.twice(content->name_of())) {
            const auto file = [&](std::size_t tensor) {
                return content->files[content->tensors[tensor].file].path;
            };
            return Error{ErrorCode::invalid_argument,
                         fmt::format("tensor {} is in {} and in {}",
                                     checkpoint::shown(content->tensors[twice->first].name),
                                     file(twice->first), file(twice->second)),
                         path,
                         paths.size() == 1 ? "give the path of the index or of one file"
                                           : "give the path of the index, or leave one of the files out"};
        }
        return Checkpoint(std::move(content));
    });
}

const std::vector<TensorInfo>& Checkpoint::tensors() const {
    return content_->tensors;
}

const std::vector<CheckpointFile>& Checkpoint::files() const {
    return content_->files;
}

Bytes Checkpoint::bytes() const {
    return content_->bytes;
}

const std::vector<std::pair<std::string, std::string>>& Checkpoint::metadata() const {
    return content_->metadata;
}

const std::vector<std::string>& Checkpoint::notes() const {
    return content_->notes;
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
    const auto found = content_->names.find(name, content_->name_of());
    return found ? &content_->tensors[*found] : nullptr;
}

Result<Checkpoint> Checkpoint::only(const std::vector<std::string>& patterns) const {
    return guarded<Checkpoint>(content_->path, [&]() -> Result<Checkpoint> {
        SIDESTEP_TRY(auto wanted, checkpoint::Patterns::parse(patterns));
        auto content = std::make_shared<Content>();
        content->path = content_->path;
        content->index = content_->index;
        content->files = content_->files;
        content->metadata = content_->metadata;
        content->notes = content_->notes;
        for (const TensorInfo& tensor : content_->tensors)
            if (wanted.fits(tensor.name)) content->tensors.push_back(tensor);
        if (content->tensors.empty()) {
            return Error{ErrorCode::not_found,
                         fmt::format("none of the {} tensors fits {}", content_->tensors.size(),
                                     checkpoint::shown(fmt::format("{}", fmt::join(patterns, " ")))),
                         content_->path, "sidestep inspect lists the names"};
        }
        if (const auto absent = wanted.names_without_use(); !absent.empty())
            return Error{
                ErrorCode::not_found,
                fmt::format("of {} tensors none is called {}", content_->tensors.size(), first_of(absent)),
                content_->path, "sidestep inspect lists the names"};
        if (const auto unused = wanted.others_without_use(); !unused.empty())
            content->notes.push_back(fmt::format("no tensor fits the pattern{} {}",
                                                 unused.size() == 1 ? "" : "s", first_of(unused)));
        content->finish();
        return Checkpoint(std::move(content));
    });
}

Result<ManifestRun> Checkpoint::write_manifest(const std::string& path, const Progress& progress) const {
    return guarded<ManifestRun>(content_->path, [&]() -> Result<ManifestRun> {
        const auto& files = content_->files;
        SIDESTEP_CHECK(check_here("making checksums"));
        SIDESTEP_CHECK(check_file_names(files));
        SIDESTEP_CHECK(check_manifest_target(path, content_->path, content_->index, files));
        // A name that cannot be had is refused before gigabytes are read.
        SIDESTEP_TRY(auto written, driver::ReplacedFile::begin(path));
        checkpoint::Manifest manifest;
        for (const CheckpointFile& file : files) {
            const std::vector<std::uint64_t> none(checkpoint::block_count(file.size));
            manifest.files.push_back({checkpoint::base_name(file.path), file.size, none});
        }
        const auto visit = [&manifest](std::size_t file, Bytes offset, const void* data,
                                       Bytes size) -> Result<void> {
            manifest.files[file].blocks[offset / checkpoint::Manifest::usual_block] =
                checkpoint::hash_block(data, size);
            return {};
        };
        SIDESTEP_TRY(const ManifestRun run, checkpoint::read_blocks(files, visit, progress));
        SIDESTEP_CHECK(checkpoint::write_manifest(manifest, written, path));
        return run;
    });
}

Result<ManifestRun> Checkpoint::verify_manifest(const std::string& path, const Progress& progress) const {
    return guarded<ManifestRun>(content_->path, [&]() -> Result<ManifestRun> {
        SIDESTEP_CHECK(check_here("checking checksums"));
        SIDESTEP_TRY(auto manifest, checkpoint::read_manifest(path));
        std::vector<std::size_t> all(content_->files.size());
        std::iota(all.begin(), all.end(), std::size_t{0});
        SIDESTEP_TRY(const auto check, checkpoint::ManifestCheck::create(std::move(manifest), content_->files,
                                                                         content_->tensors, all));
        Differences differences;
        const auto visit = [&](std::size_t file, Bytes offset, const void* data, Bytes size) -> Result<void> {
            const auto same = check.compare(file, offset, data, size);
            if (!same) differences.add(file, offset, same.error());
            return {};
        };
        SIDESTEP_TRY(const ManifestRun run, checkpoint::read_blocks(content_->files, visit, progress));
        if (!differences.first) return run;
        Error error = *differences.first;
        if (differences.count > 1)
            error.message += fmt::format("; {} more blocks differ", differences.count - 1);
        return error;
    });
}

}  // namespace sidestep
