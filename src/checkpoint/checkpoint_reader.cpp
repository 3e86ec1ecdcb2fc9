#include "checkpoint/checkpoint_reader.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <new>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>

#include "base/exception_words.hpp"
#include "base/try.hpp"
#include "base/workers.hpp"
#include "checkpoint/folder_reader.hpp"
#include "checkpoint/gguf.hpp"
#include "checkpoint/names.hpp"
#include "checkpoint/part_names.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/shard_index.hpp"
#include "driver/cpus.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr Bytes largest_gguf_header = Bytes{1} << 30;
constexpr Bytes first_gguf_bytes = Bytes{1} << 20;
// Read at once: the whole header of a small file.
constexpr Bytes first_bytes = 4096;
constexpr std::size_t max_header_threads = 8;
constexpr std::uint64_t max_split_files = 65535;  // the metadata count them with 16 bits

// One file of a checkpoint.
struct FileHeader {
    CheckpointFile file;
    std::vector<TensorInfo> tensors;
    TextPairs metadata;
    std::vector<std::string> notes;
    GgufSplit split;
};

template <typename Header>
FileHeader file_header(const OpenFile& open, Header& header) {
    FileHeader read;
    read.file = {open.path, open.facts.size, header.data_begin, open.facts.version,
                 open.far ? open.far->node : std::string()};
    read.tensors = std::move(header.tensors);
    read.metadata = std::move(header.metadata);
    return read;
}

Result<FileHeader> read_gguf(const OpenFile& open) {
    Bytes bytes = std::min(open.facts.size, first_gguf_bytes);
    for (;;) {
        SIDESTEP_TRY(const std::string head, read_text(open, 0, bytes));
        SIDESTEP_TRY(GgufHeader header, parse_gguf(head, open.facts.size, open.path));
        if (header.needs == 0) {
            FileHeader read = file_header(open, header);
            read.split = header.split;
            read.notes = std::move(header.notes);
            return read;
        }
        if (header.needs > largest_gguf_header) {
            return Error{ErrorCode::invalid_argument,
                         fmt::format("the header takes more than {}", format_bytes(largest_gguf_header)),
                         open.path,
                         {}};
        }
        bytes = std::min({open.facts.size, largest_gguf_header, std::max(header.needs, bytes * 2)});
    }
}

Result<FileHeader> read_safetensors(const OpenFile& open, std::string_view first,
                                    const CheckpointOptions& options) {
    SIDESTEP_TRY(const Bytes length, header_length(first, open.facts.size, open.path));
    std::string rest;
    std::string_view text = first.substr(std::min(first.size(), length_bytes), length);
    if (text.size() < length) {
        SIDESTEP_TRY(rest, read_text(open, length_bytes, length));
        text = rest;
    }
    SIDESTEP_TRY(SafetensorsHeader header, parse_header(text, open.facts.size, options, open.path));
    FileHeader read = file_header(open, header);
    read.notes = std::move(header.notes);
    return read;
}

// What is often found in a checkpoint's place.
Result<void> check_beginning(std::string_view first, const std::string& path) {
    struct Other {
        std::string_view begins;
        const char* what;
        const char* hint;
    };
    using namespace std::string_view_literals;
    static constexpr Other others[] = {
        {"version https://git-lfs"sv, "a pointer of Git LFS, not the file itself",
         "fetch it with `git lfs pull`"},
        {"<!DOCTYPE"sv, "an HTML page", "download the file itself, not the page about it"},
        {"<!doctype"sv, "an HTML page", "download the file itself, not the page about it"},
        {"<html"sv, "an HTML page", "download the file itself, not the page about it"},
        {"PK\3\4"sv, "a zip archive, as PyTorch writes (.pt, .bin)",
         "convert it: safetensors.torch.save_file(torch.load(...), ...)"},
        {"\x80\x02\x8a"sv, "a pickle of an old PyTorch",
         "convert it: safetensors.torch.save_file(torch.load(...), ...)"},
        {"\x89HDF\r\n"sv, "an HDF5 file", "convert it to safetensors"},
    };
    const bool header = first.size() > length_bytes && first[length_bytes] == '{';
    for (const auto& [begins, what, hint] : others)
        if (!header && first.starts_with(begins))
            return Error{ErrorCode::invalid_argument, fmt::format("{} is {}", path, what), path, hint};
    return {};
}

// Of either kind, told apart by how they begin: a safetensors header of that length would be too long.
Result<FileHeader> read_file(const std::string& path, const CheckpointOptions& options,
                             const FarFilesPtr& far) {
    try {
        SIDESTEP_TRY(const OpenFile open, open_regular(path, far));
        SIDESTEP_TRY(const std::string first,
                     read_text(open, 0, std::min<Bytes>(open.facts.size, first_bytes)));
        SIDESTEP_CHECK(check_beginning(first, path));
        return first.starts_with(gguf_magic) ? read_gguf(open) : read_safetensors(open, first, options);
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "there is no memory to read the header", path, {}};
    } catch (const std::exception& error) {
        return Error{ErrorCode::internal,
                     fmt::format("the header cannot be read: {}", base::words_of(error)),
                     path,
                     {}};
    }
}

// All at once, by several threads; of several failures the first in the order of the paths is told.
Result<std::vector<FileHeader>> read_files(const std::vector<std::string>& paths,
                                           const CheckpointOptions& options, const FarFilesPtr& far) {
    std::vector<std::optional<Result<FileHeader>>> read(paths.size());
    std::atomic<std::size_t> failed{paths.size()};  // the first that did, so far
    const auto processors = static_cast<std::size_t>(driver::usable_cpu_count());
    // Few files are read before a thread has started.
    const std::size_t threads =
        std::min({max_header_threads, processors, std::max<std::size_t>(paths.size() / 4, 1)});
    base::in_parallel(threads, paths.size(), [&](std::size_t i) {
        std::size_t first = failed.load();
        if (i > first) return;
        read[i] = read_file(paths[i], options, far);
        while (!read[i]->ok() && i < first && !failed.compare_exchange_weak(first, i)) {
        }
    });
    std::vector<FileHeader> headers;
    headers.reserve(paths.size());
    for (auto& one : read) {
        // Those that nobody read stand behind one that failed.
        if (!one->ok()) return one->error();
        headers.push_back(std::move(**one));
    }
    return headers;
}

// The first file's metadata and the next ones', each key once. Those of a file have each key once.
void add_metadata(Headers& headers, std::unordered_set<std::string>& keys, TextPairs& metadata,
                  bool of_file) {
    if (metadata.empty()) return;
    if (of_file && headers.metadata.empty()) {
        headers.metadata = std::move(metadata);
        return;
    }
    if (keys.empty())
        for (const auto& pair : headers.metadata) keys.insert(pair.first);
    for (auto& pair : metadata)
        if (keys.insert(pair.first).second) headers.metadata.push_back(std::move(pair));
}

// Puts files together: what keep(file, tensor) answers true for.
template <typename Keep>
Headers join_files(std::vector<FileHeader> files, TextPairs metadata, const Keep& keep) {
    Headers headers;
    std::unordered_set<std::string> keys;
    std::size_t max = 0;
    for (const FileHeader& file : files) max += file.tensors.size();
    headers.tensors.reserve(max);
    for (std::size_t i = 0; i < files.size(); ++i) {
        for (TensorInfo& tensor : files[i].tensors) {
            tensor.file = i;
            if (keep(i, tensor)) headers.tensors.push_back(std::move(tensor));
        }
        headers.files.push_back(std::move(files[i].file));
        add_metadata(headers, keys, files[i].metadata, true);
        std::move(files[i].notes.begin(), files[i].notes.end(), std::back_inserter(headers.notes));
    }
    add_metadata(headers, keys, metadata, false);
    return headers;
}

Headers join_all(std::vector<FileHeader> files) {
    return join_files(std::move(files), {}, [](std::size_t, const TensorInfo&) { return true; });
}

// Which of the index's entries were found, and what the files hold beyond them.
class IndexMatch {
public:
    explicit IndexMatch(const ShardIndex& index)
        : index_(index),
          name_([this](std::size_t i) { return std::string_view(index_.entries[i].tensor); }),
          names_(index.entries.size(), name_),
          found_(index.entries.size(), false) {}

    // Whether the index wants this tensor from this file.
    bool takes(std::size_t shard, const TensorInfo& tensor) {
        const auto entry = names_.find(tensor.name, name_);
        if (entry && index_.entries[*entry].shard == shard) return found_[*entry] = true;
        (entry ? elsewhere_ : unnamed_).add(tensor.name);
        return false;
    }

    // An error for the first tensor that its file lacks, and, unless `lenient`, for those that the index does not name.
    Result<void> check(const std::string& index_path, bool lenient) const {
        SIDESTEP_CHECK(check_found(index_path));
        if (unnamed_.count == 0 || lenient) return {};
        return Error{
            ErrorCode::invalid_argument,
            fmt::format("the index does not name {} of the files' tensors: {}", unnamed_.count,
                        unnamed_.words()),
            index_path,
            "copy or download the index again; --lenient, CheckpointOptions::lenient, leaves them out"};
    }

    std::vector<std::string> notes() const {
        std::vector<std::string> notes;
        if (unnamed_.count > 0)
            notes.push_back(fmt::format("{} of the files' tensors {} not in the index and left out: {}",
                                        unnamed_.count, unnamed_.count == 1 ? "is" : "are",
                                        unnamed_.words()));
        if (elsewhere_.count > 0)
            notes.push_back(
                fmt::format("{} of the tensors {} in a second file too; each is read from the file that the "
                            "index names: {}",
                            elsewhere_.count, elsewhere_.count == 1 ? "is" : "are", elsewhere_.words()));
        return notes;
    }

private:
    // Tensors, the first of them by name.
    struct Some {
        std::size_t count = 0;
        std::string names;

        void add(std::string_view name) {
            if (count++ < max_names) names += (count == 1 ? "" : ", ") + shown(name);
        }
        std::string words() const { return count > max_names ? names + ", ..." : names; }
    };
    static constexpr std::size_t max_names = 3;

    Result<void> check_found(const std::string& index_path) const {
        const auto lacking = static_cast<std::size_t>(std::count(found_.begin(), found_.end(), false));
        if (lacking == 0) return {};
        const auto first =
            static_cast<std::size_t>(std::find(found_.begin(), found_.end(), false) - found_.begin());
        const ShardIndex::Entry& entry = index_.entries[first];
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the index says that tensor {} is in {}, which does not hold it{}",
                                 shown(entry.tensor), shown(index_.shards[entry.shard]),
                                 lacking == 1 ? std::string()
                                              : fmt::format("; {} more are not where it says", lacking - 1)),
                     index_path, "copy or download the index and its files again"};
    }

    const ShardIndex& index_;
    NameTable::NameOf name_;
    NameTable names_;
    std::vector<bool> found_;
    Some unnamed_;    // that the index does not name
    Some elsewhere_;  // that it names for another file
};

// What a file holds that lies beside an index without tensors; nothing where no file does, as after a save of none.
Result<std::string> note_of_empty_index(const std::string& folder, const CheckpointOptions& options,
                                        const FarFilesPtr& far) {
    SIDESTEP_TRY(const auto names, far ? far->names(folder) : driver::names_in(folder));
    for (const std::string& name : names) {
        if (!name.ends_with(safetensors_ending)) continue;
        const auto file = read_file(beside(folder, name), options, far);
        if (file && !file->tensors.empty())
            return fmt::format("the index names no tensor, and {} beside it holds {}", shown(name),
                               file->tensors.size());
    }
    return std::string();
}

// total_size is the tensors' bytes by convention; some writers sum up the files.
std::string note_of_size(Bytes total_size, const Headers& headers) {
    Bytes tensors = 0;
    Bytes files = 0;
    for (const TensorInfo& tensor : headers.tensors) tensors += tensor.bytes;
    for (const CheckpointFile& file : headers.files) files += file.size;
    if (total_size == tensors) return {};
    if (total_size == files)
        return "total_size of the index counts the bytes of the files, not of the tensors";
    return fmt::format("total_size of the index is {}, and the tensors have {} bytes", total_size, tensors);
}

Result<Headers> read_index(const std::string& path, const CheckpointOptions& options,
                           const FarFilesPtr& far) {
    SIDESTEP_TRY(const std::string text, read_whole(path, largest_index, "an index", far));
    SIDESTEP_TRY(ShardIndex index, parse_shard_index(text, path));
    const std::string folder = driver::split_path(path).folder;
    std::vector<std::string> paths;
    for (const std::string& shard : index.shards) {
        paths.push_back(beside(folder, shard));
        SIDESTEP_TRY(const auto facts, facts_of(paths.back(), far));
        if (facts) continue;
        return Error{ErrorCode::not_found,
                     fmt::format("{}, which the index names, does not exist", paths.back()), path,
                     "copy or download the missing file"};
    }
    SIDESTEP_TRY(auto files, read_files(paths, options, far));
    std::string empty;
    if (index.entries.empty()) {
        SIDESTEP_TRY(empty, note_of_empty_index(folder, options, far));
        if (!empty.empty() && !options.lenient)
            return Error{ErrorCode::invalid_argument, empty, path,
                         "copy or download the index again, or give the paths of the files"};
    }
    IndexMatch match(index);
    Headers headers = join_files(
        std::move(files), std::move(index.metadata),
        [&match](std::size_t shard, const TensorInfo& tensor) { return match.takes(shard, tensor); });
    headers.index = path;
    SIDESTEP_CHECK(match.check(path, options.lenient));
    if (!empty.empty()) headers.notes.push_back(std::move(empty));
    for (std::string& note : match.notes()) headers.notes.push_back(std::move(note));
    if (index.total_size) {
        if (std::string note = note_of_size(*index.total_size, headers); !note.empty())
            headers.notes.push_back(std::move(note));
    }
    return headers;
}

// The files of a split GGUF, of which the first is read. They lie beside it.
Result<std::vector<FileHeader>> read_split(FileHeader first, const PartName& name,
                                           const CheckpointOptions& options, const FarFilesPtr& far) {
    const GgufSplit split = first.split;
    const std::string path = first.file.path;
    const auto wrong = [](std::string message, const std::string& where) {
        return Error{ErrorCode::invalid_argument, std::move(message), where,
                     "copy or download all files of the model again"};
    };
    if (name.count != split.count || split.count > max_split_files)
        return wrong(
            fmt::format("the file says that it is one of {}, and its name says {}", split.count, name.count),
            path);
    const std::string folder = driver::split_path(path).folder;
    std::vector<std::string> names{driver::split_path(path).name};
    std::vector<std::string> paths;
    for (std::uint32_t i = 1; i < name.count; ++i) {
        std::string other = name.name_of(name.number + i);
        SIDESTEP_TRY(const auto facts, facts_of(beside(folder, other), far));
        if (!facts) continue;
        paths.push_back(beside(folder, other));
        names.push_back(std::move(other));
    }
    if (const std::string absent = absent_parts(names); !absent.empty())
        return Error{ErrorCode::not_found, fmt::format("files of the model are missing: {}", absent), path,
                     "copy or download the missing files"};
    SIDESTEP_TRY(auto files, read_files(paths, options, far));
    std::size_t tensors = first.tensors.size();
    for (std::size_t i = 0; i < files.size(); ++i) {
        tensors += files[i].tensors.size();
        if (files[i].split.count != split.count || files[i].split.number != i + 1)
            return wrong(fmt::format("the file is not number {} of {}, as its name says", i + 2, split.count),
                         paths[i]);
    }
    if (split.tensors && *split.tensors != tensors)
        return wrong(fmt::format("the files hold {} tensors, and the first says {}", tensors, *split.tensors),
                     path);
    files.insert(files.begin(), std::move(first));
    return files;
}

// One file, and the others of its model where it is the first of a split GGUF.
Result<Headers> read_one(const std::string& path, const CheckpointOptions& options, const FarFilesPtr& far) {
    SIDESTEP_TRY(auto files, read_files({path}, options, far));
    FileHeader& file = files.front();
    const auto name = parse_part_name(driver::split_path(path).name);
    if (file.split.count > 1 && file.split.number == 0 && name) {
        SIDESTEP_TRY(files, read_split(std::move(file), *name, options, far));
        return join_all(std::move(files));
    }
    const std::uint64_t count =
        name && name->ending.ends_with(safetensors_ending) ? name->count : file.split.count;
    if (count > 1)
        file.notes.push_back(
            fmt::format("{}: one of {} files of a model; the others are not read", path, count));
    return join_all(std::move(files));
}

Result<Headers> read_folder(const std::string& folder, const CheckpointOptions& options,
                            const FarFilesPtr& far) {
    SIDESTEP_TRY(const FolderFiles found, files_of_folder(folder, far));
    if (!found.index.empty()) {
        SIDESTEP_TRY(Headers headers, read_index(found.index, options, far));
        const auto is_single = [&](const CheckpointFile& file) { return file.path == found.single; };
        if (!found.single.empty() && std::none_of(headers.files.begin(), headers.files.end(), is_single))
            headers.notes.push_back(
                fmt::format("{} is left out: {} does not name it", found.single, found.index));
        return headers;
    }
    if (!found.paths.front().ends_with(gguf_ending)) {
        SIDESTEP_TRY(auto files, read_files(found.paths, options, far));
        return join_all(std::move(files));
    }
    SIDESTEP_TRY(Headers headers, read_one(found.paths.front(), options, far));
    if (headers.files.size() == found.paths.size()) return headers;
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} does not say that it is one of the {} GGUF files of the folder",
                             found.paths.front(), found.paths.size()),
                 folder, "give the path of one of them"};
}

}  // namespace

Result<Headers> read_headers(const std::string& path, const CheckpointOptions& options,
                             const FarFilesPtr& far) {
    SIDESTEP_TRY(const auto facts, facts_of(path, far));
    if (!facts) return Error{ErrorCode::not_found, fmt::format("there is no {}", path), path, {}};
    if (facts->type == driver::FileType::directory) return read_folder(path, options, far);
    if (path.ends_with(".json")) return read_index(path, options, far);
    return read_one(path, options, far);
}

Result<Headers> read_headers(const std::vector<std::string>& paths, const CheckpointOptions& options,
                             const FarFilesPtr& far) {
    for (const std::string& path : paths) {
        SIDESTEP_TRY(const auto facts, facts_of(path, far));
        if (!facts) return Error{ErrorCode::not_found, fmt::format("there is no {}", path), path, {}};
        const bool folder = facts->type == driver::FileType::directory;
        if (!folder && !path.ends_with(".json")) continue;
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} is {} among several paths", path, folder ? "a folder" : "an index"),
                     path, "name it alone, or only files with tensors"};
    }
    SIDESTEP_TRY(auto files, read_files(paths, options, far));
    Headers headers = join_all(std::move(files));
    std::vector<std::string> names;
    for (const std::string& path : paths) names.push_back(driver::split_path(path).name);
    if (const std::string absent = absent_parts(names); !absent.empty())
        headers.notes.push_back(fmt::format("not read, though of the same model by their names: {}", absent));
    return headers;
}

}  // namespace sidestep::checkpoint
