// The index of a checkpoint in several safetensors files, as Hugging Face's libraries write it: which file
// holds which tensor. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::checkpoint {

struct ShardIndex {
    struct Entry {
        std::string tensor;
        std::uint32_t shard = 0;  // position in `shards`
    };
    std::vector<std::string> shards;  // file names, each once, sorted
    std::vector<Entry> entries;       // in the order of the index
    // metadata.total_size where it is a whole number: by convention the bytes of all tensors.
    std::optional<Bytes> total_size;
    std::vector<std::pair<std::string, std::string>> metadata;  // keys begin with "index."
};

// `file` stands in errors only.
Result<ShardIndex> parse_shard_index(std::string_view text, const std::string& file);

// "model-00002-of-00005.safetensors": the name of shard `number` (from 0) of `count`.
std::string shard_name(std::size_t number, std::size_t count);

// The text of model.safetensors.index.json: `shard_of` has the name of a tensor and of the file that holds
// it. Sorted by name, as the usual libraries write it.
std::string write_shard_index(std::vector<std::pair<std::string, std::string>> shard_of, Bytes total_size);

// What stands in the index's place while the files of a save get their names. Every reader refuses it, this
// one with words: its weight_map is null.
std::string interrupted_index();

inline constexpr const char* index_name = "model.safetensors.index.json";
inline constexpr const char* single_name = "model.safetensors";

}  // namespace sidestep::checkpoint
