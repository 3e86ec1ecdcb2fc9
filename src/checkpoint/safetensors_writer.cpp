// What is written in front of tensors: the other half of safetensors.hpp.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/try.hpp"
#include "checkpoint/names.hpp"
#include "checkpoint/safetensors.hpp"

namespace sidestep::checkpoint {
namespace {

Error refused(const std::string& name, const std::string& why) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("tensor {} cannot be written: it {}", shown(name), why),
                 {},
                 {}};
}

Result<void> check_names(const std::vector<TensorToWrite>& tensors, const TextPairs& metadata) {
    const NameTable::NameOf tensor = [&](std::size_t i) { return std::string_view(tensors[i].name); };
    if (const auto twice = NameTable(tensors.size(), tensor).twice(tensor))
        return refused(tensors[twice->first].name, "is named twice");
    for (const TensorToWrite& one : tensors) {
        if (first_bad_utf8(one.name)) return refused(one.name, "has a name that is no UTF-8");
        if (one.name == "__metadata__") return refused(one.name, "has the name that stands for metadata");
    }
    const NameTable::NameOf key = [&](std::size_t i) { return std::string_view(metadata[i].first); };
    if (const auto twice = NameTable(metadata.size(), key).twice(key)) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the metadata has the key {} twice", shown(metadata[twice->first].first)),
                     {},
                     {}};
    }
    for (const auto& [name, text] : metadata) {
        if (first_bad_utf8(name) || first_bad_utf8(text)) {
            return Error{
                ErrorCode::invalid_argument, fmt::format("the metadata {} is no UTF-8", shown(name)), {}, {}};
        }
    }
    return {};
}

std::string entry_of(const TensorToWrite& tensor, Bytes begin, Bytes end) {
    return fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                       json_text(tensor.name), to_string(tensor.dtype), fmt::join(tensor.shape, ","), begin,
                       end);
}

std::string metadata_text(const TextPairs& metadata) {
    std::string text;
    for (const auto& [key, value] : metadata)
        text += fmt::format("{}{}:{}", text.empty() ? "" : ",", json_text(key), json_text(value));
    return fmt::format("\"__metadata__\":{{{}}}", text);
}

}  // namespace

Result<WrittenHeader> write_header(const std::vector<TensorToWrite>& tensors, const TextPairs& metadata) {
    SIDESTEP_CHECK(check_names(tensors, metadata));
    WrittenHeader header;
    header.order.resize(tensors.size());
    std::iota(header.order.begin(), header.order.end(), std::size_t{0});
    std::sort(header.order.begin(), header.order.end(), [&tensors](std::size_t a, std::size_t b) {
        if (tensors[a].dtype != tensors[b].dtype) return tensors[a].dtype > tensors[b].dtype;
        return tensors[a].name < tensors[b].name;
    });
    header.offsets.resize(tensors.size());
    header.sizes.resize(tensors.size());
    std::string json = "{";
    if (!metadata.empty()) json += metadata_text(metadata);
    Bytes end = 0;
    for (const std::size_t i : header.order) {
        const auto bytes = tensor_bytes(tensors[i].dtype, tensors[i].shape);
        if (!bytes) return refused(tensors[i].name, bytes.error().message);
        header.sizes[i] = *bytes;
        header.offsets[i] = end;
        if (__builtin_add_overflow(end, *bytes, &end))
            return refused(tensors[i].name, "makes the file larger than 2^64 bytes");
        if (json.size() > 1) json += ',';
        json += entry_of(tensors[i], header.offsets[i], end);
    }
    json += '}';
    json.append((length_bytes - json.size() % length_bytes) % length_bytes, ' ');
    if (json.size() > largest_header) {
        return Error{ErrorCode::invalid_argument,
                     fmt::format("a header of {} tensors would have {} bytes, more than {}", tensors.size(),
                                 json.size(), largest_header),
                     {},
                     "write several files: SaveOptions::shard_bytes"};
    }
    Bytes length = json.size();
    for (Bytes i = 0; i < length_bytes; ++i, length >>= 8) header.bytes += static_cast<char>(length & 0xFF);
    header.bytes += json;
    if (__builtin_add_overflow(end, Bytes{header.bytes.size()}, &header.file_size))
        return Error{ErrorCode::invalid_argument, "the file would be larger than 2^64 bytes", {}, {}};
    for (Bytes& offset : header.offsets) offset += header.bytes.size();
    return header;
}

}  // namespace sidestep::checkpoint
