// Indexes of checkpoints in several files.
#include "checkpoint/shard_index.hpp"

#include <map>

#include "tests/fuzz/fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace sidestep;
    const auto index = checkpoint::parse_shard_index({reinterpret_cast<const char*>(data), size}, "f");
    if (!index.ok()) {
        fuzz::require(index.error().message.size() > 5 && index.error().message.size() < 1000,
                      "a refusal has words");
        fuzz::require(index.error().where.substr(0, 1) == "f", "a refusal names the file",
                      index.error().to_string());
        return 0;
    }
    for (std::size_t i = 0; i < index->shards.size(); ++i) {
        const std::string& shard = index->shards[i];
        fuzz::require(
            !shard.empty() && shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos,
            "a file lies beside the index", shard);
        fuzz::require(shard != "." && shard != "..", "a file is not a folder");
        fuzz::require(i == 0 || index->shards[i - 1] < shard, "files are sorted, each once", shard);
    }
    std::vector<std::pair<std::string, std::string>> pairs;
    std::map<std::string, std::string> map;
    for (const auto& entry : index->entries) {
        fuzz::require(entry.shard < index->shards.size(), "a tensor has a file");
        pairs.emplace_back(entry.tensor, index->shards[entry.shard]);
        fuzz::require(map.insert(pairs.back()).second, "a tensor appears once", entry.tensor);
    }
    const auto again = checkpoint::parse_shard_index(checkpoint::write_shard_index(pairs, size), "again");
    fuzz::require(again.ok(), "a written index reads", again.ok() ? "" : again.error().to_string());
    fuzz::require(again->shards == index->shards && again->total_size == size, "files and total come back");
    fuzz::require(again->entries.size() == pairs.size(), "tensors come back");
    for (const auto& entry : again->entries)
        fuzz::require(map.at(entry.tensor) == again->shards[entry.shard], "tensors keep their files",
                      entry.tensor);
    return 0;
}
