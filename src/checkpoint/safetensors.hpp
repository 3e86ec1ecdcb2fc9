// The header of a safetensors file: what it says, and what one says of tensors that are to be written. Pure.
//
// Rules and layout are those of the format's reference implementation, safetensors/src/tensor.rs of
// huggingface/safetensors; docs/checkpoint.md lists them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sidestep/checkpoint.hpp>
#include <sidestep/tensor_info.hpp>

namespace sidestep::checkpoint {

using TextPairs = std::vector<std::pair<std::string, std::string>>;

// In front of the header stands its length, 8 bytes little endian.
constexpr Bytes length_bytes = 8;
// The reference's limit.
constexpr Bytes largest_header = 100'000'000;

struct SafetensorsHeader {
    std::vector<TensorInfo> tensors;  // by their offsets in the file; TensorInfo::file is 0
    TextPairs metadata;
    Bytes data_begin = 0;
    std::vector<std::string> notes;
};

// The length of the header, of the first bytes of a file (8, or all where it has fewer). `file` stands in
// errors only, here and below.
Result<Bytes> header_length(std::string_view first, Bytes file_size, const std::string& file);

// `text` is the header, without its length in front, of a file of `file_size` bytes.
Result<SafetensorsHeader> parse_header(std::string_view text, Bytes file_size,
                                       const CheckpointOptions& options, const std::string& file);

struct TensorToWrite {
    std::string name;
    Dtype dtype = Dtype::u8;
    std::vector<std::uint64_t> shape;
};

struct WrittenHeader {
    // The first bytes of the file: length, JSON, blanks up to a multiple of 8.
    std::string bytes;
    std::vector<std::size_t> order;  // positions of the given tensors, as they follow one another in the file
    std::vector<Bytes> offsets;      // of the first byte of each tensor in the file; in the order given
    std::vector<Bytes> sizes;        // of each tensor; in the order given
    Bytes file_size = 0;
};

// Lays tensors out as the reference does: by descending Dtype, then by name, without gaps. `metadata` goes
// into
// __metadata__, none where it is empty. ErrorCode::invalid_argument names the tensor that cannot be written:
// a name that is no UTF-8, appears twice or is "__metadata__", Dtype::other, a size that is not a whole number
// of bytes.
Result<WrittenHeader> write_header(const std::vector<TensorToWrite>& tensors, const TextPairs& metadata);

// Bytes of a tensor. ErrorCode::invalid_argument where shape and type make more than 2^64 - 1 bits, or no
// whole number of bytes, or for Dtype::other.
Result<Bytes> tensor_bytes(Dtype dtype, const std::vector<std::uint64_t>& shape);

}  // namespace sidestep::checkpoint
