// Checksums of a checkpoint's files, block by block. Pure; the format is described in docs/checkpoint.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/checkpoint.hpp>
#include <sidestep/result.hpp>
#include <sidestep/tensor_info.hpp>

namespace sidestep::checkpoint {

struct Manifest {
    struct File {
        std::string name;  // without a folder
        Bytes size = 0;
        std::vector<std::uint64_t> blocks;  // XXH3-64 of each block, from the first byte of the file on
    };
    static constexpr Bytes usual_block = Bytes{1}
                                         << 20;  // that of transfer::Spread, and the only one there is

    Bytes block = usual_block;
    std::vector<File> files;

    // Null where it has none of that name.
    const File* find(std::string_view name) const;
};

// XXH3-64 without a seed.
std::uint64_t hash_block(const void* data, Bytes size);

// Number of blocks of a file, the last of which may be shorter.
inline std::size_t block_count(Bytes file_size, Bytes block = Manifest::usual_block) {
    return static_cast<std::size_t>(file_size / block + (file_size % block != 0));
}

// ErrorCode::unsupported where a manifest cannot have the file: it is JSON, which is UTF-8, and a name that
// is not would not be found again. Said before the file is read or written.
Result<void> check_listable(std::string_view path);

std::string to_json(const Manifest& manifest);
// `file` stands in errors only.
Result<Manifest> parse_manifest(std::string_view text, const std::string& file);

// The files of a checkpoint beside those of a manifest that has their checksums.
class ManifestCheck {
public:
    // `files` and `tensors` are those of a Checkpoint; `compared` are the positions of the files of which
    // bytes will be compared. ErrorCode::mismatch where the manifest lacks one of these, or has another size
    // for it.
    static Result<ManifestCheck> create(Manifest manifest, std::vector<CheckpointFile> files,
                                        std::vector<TensorInfo> tensors,
                                        const std::vector<std::size_t>& compared);

    // Compares bytes of file number `file`, one of `compared`, with its checksums; safe to call from several
    // threads. True: they are one whole block, and equal. False: they are not just one block, so that no
    // checksum tells of them. ErrorCode::mismatch names file, block and what lies in it.
    Result<bool> compare(std::size_t file, Bytes offset, const void* data, Bytes size) const;

private:
    ManifestCheck() = default;
    Manifest manifest_;
    std::vector<std::size_t> of_file_;  // file number -> position in manifest_.files
    std::vector<CheckpointFile> files_;
    std::vector<TensorInfo> tensors_;  // those that are not empty
};

// "tensors a.weight, a.bias and 3 more" that lie between two offsets of a file, "the header" before
// `data_begin`, or "no tensor". `tensors` by file and offset, none of them empty.
std::string names_between(const std::vector<TensorInfo>& tensors, const CheckpointFile& file,
                          std::size_t file_number, Bytes begin, Bytes end);

}  // namespace sidestep::checkpoint
