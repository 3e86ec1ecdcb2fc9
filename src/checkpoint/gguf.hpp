// GGUF files, versions 2 and 3, little endian: what their header says. Pure.
//
// After the public specification, docs/gguf.md of ggml-org/ggml; sizes of the types after its
// GGML_QUANT_SIZES.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/tensor_info.hpp>

namespace sidestep::checkpoint {

// What GGUF files begin with.
constexpr std::string_view gguf_magic = "GGUF";

// Of a model in several files, split.* of the metadata.
struct GgufSplit {
    std::uint64_t number = 0;              // from 0
    std::uint64_t count = 1;               // of files
    std::optional<std::uint64_t> tensors;  // in all files together
};

struct GgufHeader {
    // Bytes of the file's beginning that are needed to go on; 0: all was read, and the rest of this holds.
    Bytes needs = 0;
    std::vector<TensorInfo> tensors;  // by their offsets in the file; TensorInfo::file is 0
    std::vector<std::pair<std::string, std::string>> metadata;  // arrays as "string[32000]"
    Bytes data_begin = 0;
    GgufSplit split;
    std::vector<std::string> notes;  // bytes that are no tensor's
};

// `head` is the beginning of a file of `file_size` bytes, any number of them. `file` stands in errors only.
// Bounded by `head`: counts in the file are believed only as far as there are bytes for them.
Result<GgufHeader> parse_gguf(std::string_view head, Bytes file_size, const std::string& file);

}  // namespace sidestep::checkpoint
