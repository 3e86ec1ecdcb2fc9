#include "checkpoint/shard_index.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include <fmt/format.h>

#include "base/try.hpp"
#include "checkpoint/json_events.hpp"
#include "checkpoint/names.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr const char* interrupted_key = "interrupted_save";

// Why a name is none of a file beside the index; empty where it is.
const char* fault_of(std::string_view name) {
    if (name.empty()) return "is empty";
    if (name == "." || name == "..") return "is a folder";
    if (name.front() == '/') return "is an absolute path";
    if (name.find_first_of("/\\") != std::string_view::npos) return "leads to another folder";
    if (name.find('\0') != std::string_view::npos) return "holds a zero byte";
    return "";
}

// Some writers count bytes in floating point: 13476839424.0.
std::optional<Bytes> whole_number(const JsonScalar& value) {
    if (value.kind == JsonScalar::Kind::natural) return value.natural;
    if (value.kind != JsonScalar::Kind::number) return std::nullopt;
    double number = 0;
    const auto read = std::from_chars(value.text.data(), value.text.data() + value.text.size(), number);
    constexpr double exact_up_to = 9007199254740992.0;  // 2^53
    if (read.ec != std::errc() || number < 0 || number > exact_up_to || number != std::floor(number))
        return std::nullopt;
    return static_cast<Bytes>(number);
}

class IndexReader : public JsonReader {
public:
    ShardIndex index;
    bool had_map = false;

    bool key(std::string& name) override {
        if (skipped_ > 0) return true;
        if (depth() > 1) return name_ = std::move(name), true;
        part_ = name == "weight_map" ? Part::map : name == "metadata" ? Part::metadata : Part::other;
        is_interrupted_ |= name == interrupted_key;
        if (part_ == Part::map && std::exchange(had_map, true)) return fail("weight_map appears twice");
        return true;
    }

    bool begin(bool object) override {
        if (skipped_ > 0) return ++skipped_, true;
        if (depth() == 0) return object || fail("holds a list, where an object is expected");
        if (depth() == 1 && part_ == Part::map) return object || fail("weight_map is not an object");
        if (depth() == 1 && part_ == Part::metadata && object) return true;
        if (part_ == Part::map) return fail_value();
        if (part_ == Part::metadata && depth() == 2)
            index.metadata.emplace_back("index." + name_, object ? "object" : "list");
        return skipped_ = 1, true;
    }

    bool end() override {
        if (skipped_ > 0) --skipped_;
        return true;
    }

    bool scalar(JsonScalar& value) override {
        if (skipped_ > 0) return true;
        if (depth() == 0) return fail("holds no object");
        if (depth() == 1) return part_ != Part::map || fail_map(value);
        if (part_ == Part::metadata) return metadata(value);
        return value.kind == JsonScalar::Kind::text ? shard(value.text) : fail_value();
    }

private:
    enum class Part { map, metadata, other };

    bool fail_map(const JsonScalar& value) {
        if (!is_interrupted_ || value.kind != JsonScalar::Kind::null) return fail("weight_map is not an object");
        return fail(
            "a save into this folder was interrupted, or is still going on: its files may be of two saves",
            "save once more, or bring the whole checkpoint here again");
    }

    bool fail_value() { return fail(fmt::format("weight_map names no file for tensor {}", shown(name_))); }

    bool metadata(JsonScalar& value) {
        if (name_ == "total_size") index.total_size = whole_number(value);
        if (value.kind == JsonScalar::Kind::natural) value.text = std::to_string(value.natural);
        if (value.kind == JsonScalar::Kind::null) value.text = "null";
        index.metadata.emplace_back("index." + name_, std::move(value.text));
        return true;
    }

    bool shard(const std::string& file) {
        const auto [known, is_new] =
            number_of_.try_emplace(file, static_cast<std::uint32_t>(index.shards.size()));
        if (is_new) {
            if (const char* fault = fault_of(file); *fault != '\0') {
                return fail(fmt::format("the file {} of tensor {} {}", shown(file), shown(name_), fault),
                            "an index may name files in its own folder only");
            }
            index.shards.push_back(file);
        }
        index.entries.push_back({std::move(name_), known->second});
        return true;
    }

    Part part_ = Part::other;
    std::string name_;  // of the member of weight_map or metadata
    std::unordered_map<std::string, std::uint32_t> number_of_;
    int skipped_ = 0;
    bool is_interrupted_ = false;
};

// Puts the shards in the order of their names.
void sort_shards(ShardIndex& index) {
    std::vector<std::uint32_t> order(index.shards.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&index](std::uint32_t a, std::uint32_t b) { return index.shards[a] < index.shards[b]; });
    std::vector<std::uint32_t> place(order.size());
    std::vector<std::string> sorted(order.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) {
        place[order[i]] = i;
        sorted[i] = std::move(index.shards[order[i]]);
    }
    index.shards = std::move(sorted);
    for (ShardIndex::Entry& entry : index.entries) entry.shard = place[entry.shard];
}

}  // namespace

Result<ShardIndex> parse_shard_index(std::string_view text, const std::string& file) {
    IndexReader reader;
    SIDESTEP_CHECK(read_json(text, reader, "the index", file));
    if (!reader.had_map) {
        return Error{ErrorCode::invalid_argument, "the index has no weight_map", file,
                     "give the *.safetensors file, or a *.safetensors.index.json"};
    }
    ShardIndex index = std::move(reader.index);
    const NameTable::NameOf name = [&index](std::size_t i) {
        return std::string_view(index.entries[i].tensor);
    };
    if (const auto twice = NameTable(index.entries.size(), name).twice(name)) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the index names tensor {} twice", shown(name(twice->first))),
                     file,
                     {}};
    }
    sort_shards(index);
    return index;
}

std::string shard_name(std::size_t number, std::size_t count) {
    return fmt::format("model-{:05}-of-{:05}.safetensors", number + 1, count);
}

std::string write_shard_index(std::vector<std::pair<std::string, std::string>> shard_of, Bytes total_size) {
    std::sort(shard_of.begin(), shard_of.end());
    std::string text = fmt::format(
        "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_size);
    const char* separator = "\n";
    for (const auto& [tensor, shard] : shard_of) {
        text += fmt::format("{}    {}: {}", separator, json_text(tensor), json_text(shard));
        separator = ",\n";
    }
    text += shard_of.empty() ? "}\n}\n" : "\n  }\n}\n";
    return text;
}

std::string interrupted_index() {
    return fmt::format(
        "{{\n  \"{}\": \"The files of this folder were getting their names. Where that is long ago, the save "
        "was "
        "interrupted: some may be of an earlier one.\",\n  \"weight_map\": null\n}}\n",
        interrupted_key);
}

}  // namespace sidestep::checkpoint
