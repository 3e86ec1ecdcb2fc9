// The tensors of a model on disk: names, types, shapes and where their bytes lie.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/result.hpp>
#include <sidestep/tensor_info.hpp>

namespace sidestep {

struct CheckpointOptions {
    // Instead of refused: bytes after the last tensor of a safetensors file are taken for padding, tensors of a dtype that
    // safetensors does not know for raw bytes (Dtype::other), and tensors that the index does not name are left out.
    bool lenient = false;
    // ErrorCode::timed_out where the headers are not there by then, as where a file system does not answer: what is
    // asked of it goes on by itself. Zero: none. At most longest_limit.
    std::chrono::milliseconds deadline{0};
};

struct CheckpointFile {
    std::string path;
    Bytes size = 0;
    Bytes data_begin = 0;  // offset of the first byte of tensor data
    // Of the file as it was read (device, inode, size, time of writing): a load refuses one that was written to since.
    std::uint64_t identity = 0;
    std::string node = {};  // the machine that has it, which `path` is of; empty: this one
};

class Context;
namespace checkpoint {
struct FarFiles;
}

// What writing or checking a manifest has read.
struct ManifestRun {
    Bytes bytes = 0;
    std::size_t blocks = 0;  // that were hashed; of a check: and are as the manifest says
    double seconds = 0;

    double gb_per_s() const { return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0; }
};

// An opened checkpoint: headers only, no tensor data was read. A value; copies share their content. Safe to
// use from several threads.
class SIDESTEP_API Checkpoint {
public:
    // `path` is
    //   FILE.safetensors                what it holds
    //   FILE.gguf                       the same, tensor data as bytes with the type's name; the first file of a
    //                                   split model stands for all of them
    //   FILE.safetensors.index.json     all shards that it names, which lie beside it
    //   a folder                        model.safetensors.index.json in it, else model.safetensors, else
    //                                   the only index of another name, else every *.safetensors by name, else
    //                                   the only *.gguf, in one file or split
    // Accepts and refuses what the reference implementation does (safetensors/src/tensor.rs), and refuses names
    // that appear twice. Errors name file, tensor and byte: invalid_argument for malformed content, not_found
    // for a missing file or shard.
    static Result<Checkpoint> open(const std::string& path, const CheckpointOptions& options = {});
    // Several files with tensors as one checkpoint, in that order; no folder and no index among them. A single
    // path may be what it may be above. ErrorCode::invalid_argument where there is none, and where two of the
    // files hold a tensor of one name.
    static Result<Checkpoint> open(const std::vector<std::string>& paths,
                                   const CheckpointOptions& options = {});

    // Files of a node that serves, each as a place of that one node: node7/file:/data/model.safetensors. A file or the
    // files of an index are as above, and so is a folder. Headers come by copies, and
    // Context::load brings the tensors; checksums are made and checked where the files lie. Paths that are no such
    // places are opened as above. `context` stays in use as long as the call takes.
    static Result<Checkpoint> open(const Context& context, const std::vector<std::string>& paths,
                                   const CheckpointOptions& options = {});

    // In the order of the files, and within one of their offsets.
    const std::vector<TensorInfo>& tensors() const;
    const std::vector<CheckpointFile>& files() const;
    // The sum over tensors().
    Bytes bytes() const;
    // Key and value: __metadata__ of safetensors (the first file's where several have a key), the key-value
    // pairs of GGUF (arrays only as their type and length), "metadata" of an index with "index." before the
    // key.
    const std::vector<std::pair<std::string, std::string>>& metadata() const;
    // What is odd but allowed, in plain sentences: a total_size that is wrong, a tensor that a second file holds too.
    const std::vector<std::string>& notes() const;
    // Null where there is none of that name.
    const TensorInfo* find(std::string_view name) const;

    // The same checkpoint with only the tensors whose name fits one of the patterns: '*' stands for any
    // characters, '?' for one, "[a-c]" for a set, "[!a-c]" for all others; a pattern that starts with '!'
    // takes names out again, wherever it stands; where all do, they take out of all names. '\' before any of
    // these stands for the character itself: \!odd\[0\] is the name "!odd[0]".
    // ErrorCode::not_found where nothing is left and for a name, a pattern without '*', '?' and set, that no
    // tensor has; ErrorCode::invalid_argument for a broken pattern. Other patterns that fit nothing get a note.
    Result<Checkpoint> only(const std::vector<std::string>& patterns) const;

    // Whether one of files() is still what was opened; for those who read tensors from it themselves, before
    // and after. ErrorCode::not_found where it is gone, ErrorCode::end_of_file where it has become shorter (with
    // the first tensor that is cut off), ErrorCode::mismatch where it was written to, by its time of writing.
    Result<void> check_file(std::size_t file) const;

    // Called with 0 before a byte is read, then now and then, by the waiting thread; false ends with cancelled.
    using Progress = std::function<bool(Bytes done, Bytes total)>;

    // Reads all files() and writes the checksums of their blocks to `path`, all at once or not at all
    // (docs/checkpoint.md). Uses up to 8 threads. ErrorCode::invalid_argument where `path` is a file of the
    // checkpoint.
    Result<ManifestRun> write_manifest(const std::string& path, const Progress& progress = {}) const;
    // Reads all files() again and compares them with a manifest. ErrorCode::mismatch names the first file and
    // block that differ and the tensors in it, and how many more there are.
    Result<ManifestRun> verify_manifest(const std::string& path, const Progress& progress = {}) const;

    // Number of tensors, bytes and files, and types with their shares: one line.
    std::string summary() const;
    // A table (name, type, shape, bytes, file), the summary, the metadata with the first 60 bytes of each
    // value, and notes.
    std::string to_text() const;
    // The object documented in docs/json.md.
    std::string to_json() const;

private:
    struct Content;
    friend struct ContextAccess;  // files of nodes
    static Result<Checkpoint> open_at(const std::vector<std::string>& paths, const CheckpointOptions& options,
                                      std::shared_ptr<const checkpoint::FarFiles> far);
    static Result<Checkpoint> read(const std::vector<std::string>& paths, const CheckpointOptions& options,
                                   const std::shared_ptr<const checkpoint::FarFiles>& far);
    // unsupported where a file is of a node: `what` is done where it lies.
    Result<void> check_here(const char* what) const;
    explicit Checkpoint(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
    std::shared_ptr<const Content> content_;
};

}  // namespace sidestep
