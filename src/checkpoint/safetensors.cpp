#include "checkpoint/safetensors.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "checkpoint/json_events.hpp"
#include "checkpoint/names.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr const char* metadata_name = "__metadata__";
constexpr const char* format_page = "docs/checkpoint.md lists what is accepted";

Error wrong(std::string message, const std::string& file, std::string hint = {}) {
    return Error{ErrorCode::invalid_argument, std::move(message), file, std::move(hint)};
}

std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
    std::uint64_t result = 0;
    if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
    return result;
}

// The extents multiplied one after the other, as the reference does: [2^40, 2^40, 0] is too much for it,
// [0, 2^40, 2^40] is not.
std::optional<std::uint64_t> elements_of(const std::vector<std::uint64_t>& shape) {
    std::optional<std::uint64_t> elements = 1;
    for (const std::uint64_t extent : shape)
        if (elements) elements = product(*elements, extent);
    return elements;
}

// Collects what the JSON says. TensorInfo::offset and ::bytes are the two data_offsets meanwhile.
class HeaderReader : public JsonReader {
public:
    explicit HeaderReader(bool lenient) : lenient_(lenient) {}

    std::vector<TensorInfo> tensors;
    TextPairs metadata;

    bool key(std::string& name) override {
        if (skipped_ > 0) return true;
        if (depth() == 1) return key_of_root(name);
        if (in_metadata_) {
            metadata_key_ = std::move(name);
            return true;
        }
        return key_of_entry(name);
    }

    bool begin(bool object) override {
        if (skipped_ > 0) return ++skipped_, true;
        if (depth() == 0) return object || fail("holds a list, where an object is expected");
        if (depth() == 1) return begin_in_root(object);
        if (in_metadata_)
            return fail(fmt::format("{} of {} is not a string", shown(metadata_key_), metadata_name));
        if (field_ == other_field) return skipped_ = 1, true;
        if (depth() == 2 && !object && (field_ == shape_field || field_ == offsets_field)) return true;
        if (depth() > 2) return fail_field("holds something else than whole numbers");
        return fail_field(object ? "is an object" : "is a list");
    }

    bool end() override {
        if (skipped_ > 0) return --skipped_, true;
        if (depth() == 2) return field_ != offsets_field || end_of_offsets();
        if (depth() != 1) return true;
        if (std::exchange(in_metadata_, false)) return true;
        return end_of_entry();
    }

    bool scalar(JsonScalar& value) override {
        if (skipped_ > 0) return true;
        if (depth() == 0) return fail("holds no object");
        if (depth() == 1) {
            if (in_metadata_ && value.kind == JsonScalar::Kind::null) return in_metadata_ = false, true;
            if (in_metadata_) return fail(fmt::format("{} is not an object", metadata_name));
            return fail(fmt::format("tensor {} is not an object", shown(tensor_.name)));
        }
        if (in_metadata_) return metadata_value(value);
        if (field_ == other_field) return true;
        if (field_ == dtype_field) return depth() == 2 && dtype(value);
        if (depth() == 2) return fail_field("is not a list");
        if (value.kind != JsonScalar::Kind::natural)
            return fail_field("holds something else than whole numbers");
        if (field_ == shape_field) return tensor_.shape.push_back(value.natural), true;
        if (offsets_ == 2) return fail_field("holds more than two numbers");
        (offsets_++ == 0 ? tensor_.offset : tensor_.bytes) = value.natural;
        return true;
    }

private:
    enum Field { dtype_field = 0, shape_field = 1, offsets_field = 2, other_field = 3 };
    static constexpr const char* field_names[] = {"dtype", "shape", "data_offsets"};

    bool key_of_root(std::string& name) {
        in_metadata_ = name == metadata_name;
        if (in_metadata_) {
            if (std::exchange(had_metadata_, true))
                return fail(fmt::format("{} appears twice", metadata_name));
            return true;
        }
        tensor_ = {};
        tensor_.name = std::move(name);
        had_fields_ = 0;
        offsets_ = 0;
        return true;
    }

    bool key_of_entry(const std::string& name) {
        field_ = other_field;
        for (const Field field : {dtype_field, shape_field, offsets_field})
            if (name == field_names[field]) field_ = field;
        if (field_ == other_field) return true;
        if ((had_fields_ & (1u << field_)) != 0) return fail_field("appears twice");
        had_fields_ |= 1u << field_;
        return true;
    }

    bool begin_in_root(bool object) {
        if (object) return true;
        if (in_metadata_) return fail(fmt::format("{} is not an object", metadata_name));
        return fail(fmt::format("tensor {} is not an object", shown(tensor_.name)));
    }

    bool metadata_value(JsonScalar& value) {
        if (value.kind != JsonScalar::Kind::text)
            return fail(fmt::format("{} of {} is not a string", shown(metadata_key_), metadata_name));
        metadata.emplace_back(std::move(metadata_key_), std::move(value.text));
        return true;
    }

    bool dtype(JsonScalar& value) {
        if (value.kind != JsonScalar::Kind::text) return fail_field("is not a string");
        const auto known = parse_dtype(value.text);
        if (!known && !lenient_) {
            return fail(fmt::format("tensor {}: safetensors knows no dtype {}", shown(tensor_.name),
                                    shown(value.text)),
                        "--lenient, CheckpointOptions::lenient, takes such tensors for raw bytes");
        }
        tensor_.dtype = known.value_or(Dtype::other);
        tensor_.type_name = std::move(value.text);
        return true;
    }

    bool end_of_offsets() { return offsets_ == 2 || fail_field("holds less than two numbers"); }

    bool end_of_entry() {
        for (const Field field : {dtype_field, shape_field, offsets_field}) {
            field_ = field;
            if ((had_fields_ & (1u << field)) == 0) return fail_field("is missing");
        }
        tensors.push_back(std::move(tensor_));
        return true;
    }

    bool fail_field(const char* message) {
        return fail(fmt::format("{} of tensor {} {}", field_names[field_], shown(tensor_.name), message));
    }

    bool lenient_;
    bool in_metadata_ = false;
    bool had_metadata_ = false;
    std::string metadata_key_;
    TensorInfo tensor_;
    Field field_ = other_field;
    unsigned had_fields_ = 0;
    int offsets_ = 0;
    int skipped_ = 0;  // lists and objects that are open in a member that does not matter
};

// Of several of a key, the last one's value in the first one's place.
TextPairs one_of_each(TextPairs pairs) {
    const NameTable::NameOf key = [&pairs](std::size_t i) { return std::string_view(pairs[i].first); };
    if (!NameTable(pairs.size(), key).twice(key)) return pairs;
    TextPairs kept;
    std::unordered_map<std::string, std::size_t> at;
    for (auto& [name, value] : pairs) {
        const auto [known, is_new] = at.try_emplace(name, kept.size());
        if (is_new) kept.emplace_back(std::move(name), std::string());
        kept[known->second].second = std::move(value);
    }
    return kept;
}

// One tensor, whose data_offsets are `begin` and `end`, after one that ended at `before`.
Result<void> check_tensor(const TensorInfo& tensor, Bytes begin, Bytes end, Bytes before,
                          const std::string& file) {
    const auto name = [&] { return shown(tensor.name); };
    if (begin != before) {
        return wrong(
            fmt::format("tensor {} begins at byte {} of the data, where the one before it ends at {}: "
                        "the tensors {}",
                        name(), begin, before, begin < before ? "overlap" : "leave a hole"),
            file, format_page);
    }
    if (end < begin) {
        return wrong(
            fmt::format("tensor {} ends at byte {} of the data, before it begins at {}", name(), end, begin),
            file, format_page);
    }
    if (tensor.dtype == Dtype::other) {
        const auto elements = elements_of(tensor.shape);
        if (!elements)
            return wrong(fmt::format("tensor {} has more elements than 64 bits can count", name()), file,
                         format_page);
        if (*elements > 0 || begin == end) return {};
        return wrong(fmt::format("tensor {} takes {} bytes of the file (data bytes {} to {}), and its shape "
                                 "has no elements",
                                 name(), end - begin, begin, end),
                     file, format_page);
    }
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return wrong(fmt::format("tensor {} {}", name(), bytes.error().message), file, format_page);
    if (*bytes != end - begin) {
        return wrong(
            fmt::format("tensor {} takes {} bytes of the file (data bytes {} to {}), where its shape and "
                        "{} make {}",
                        name(), end - begin, begin, end, tensor.type_name, *bytes),
            file, format_page);
    }
    return {};
}

// What ends where the file does not.
Error wrong_end(const SafetensorsHeader& header, Bytes data_end, Bytes file_size, const std::string& file) {
    const Bytes room = file_size - header.data_begin;
    if (data_end < room) {
        return wrong(fmt::format("the last tensor ends at byte {}, and the file has {} bytes more",
                                 header.data_begin + data_end, room - data_end),
                     file, "--lenient, CheckpointOptions::lenient, takes them for padding");
    }
    const auto cut = std::find_if(header.tensors.begin(), header.tensors.end(),
                                  [room](const TensorInfo& tensor) { return tensor.bytes > room; });
    return wrong(fmt::format("the file ends at byte {}, and {} bytes are missing: it is cut off in tensor {}",
                             file_size, data_end - room, shown(cut->name)),
                 file, "copy or download the file again");
}

// The order, the gaps and the sizes, as the reference checks them.
Result<void> check_layout(SafetensorsHeader& header, Bytes file_size, bool lenient, const std::string& file) {
    auto& tensors = header.tensors;
    const auto earlier = [](const TensorInfo& a, const TensorInfo& b) {
        return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
    };
    // Most files name their tensors in the order of their bytes.
    if (!std::is_sorted(tensors.begin(), tensors.end(), earlier))
        std::stable_sort(tensors.begin(), tensors.end(), earlier);
    Bytes data_end = 0;
    for (const TensorInfo& tensor : tensors) {
        SIDESTEP_CHECK(check_tensor(tensor, tensor.offset, tensor.bytes, data_end, file));
        data_end = tensor.bytes;
    }
    const Bytes room = file_size - header.data_begin;
    if (data_end > room || (data_end < room && !lenient)) return wrong_end(header, data_end, file_size, file);
    if (data_end < room)
        header.notes.push_back(
            fmt::format("{}: {} bytes after the last tensor are taken for padding", file, room - data_end));
    for (TensorInfo& tensor : tensors) {
        tensor.bytes -= tensor.offset;
        tensor.offset += header.data_begin;
    }
    return {};
}

}  // namespace

Result<Bytes> tensor_bytes(Dtype dtype, const std::vector<std::uint64_t>& shape) {
    const auto bad = [](std::string message) {
        return Error{ErrorCode::invalid_argument, std::move(message), {}, {}};
    };
    if (dtype == Dtype::other) return bad("is of no type that safetensors knows");
    const auto elements = elements_of(shape);
    if (!elements) return bad("has more elements than 64 bits can count");
    const auto bits = product(*elements, static_cast<std::uint64_t>(bits_of(dtype)));
    if (!bits)
        return bad(
            fmt::format("has more bits than 64 bits can count: {} of {}", *elements, to_string(dtype)));
    if (*bits % 8 != 0) return bad(fmt::format("ends within a byte: {} of {}", *elements, to_string(dtype)));
    return *bits / 8;
}

Result<Bytes> header_length(std::string_view first, Bytes file_size, const std::string& file) {
    if (file_size < length_bytes || first.size() < length_bytes)
        return wrong(fmt::format("the file has {} bytes, less than the length of a header", file_size), file,
                     format_page);
    Bytes length = 0;
    for (std::size_t i = length_bytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(first[i]);
    if (length > largest_header) {
        return wrong(
            fmt::format("the header would have {} bytes, more than {}: this is not a safetensors file",
                        length, largest_header),
            file, format_page);
    }
    if (length > file_size - length_bytes) {
        return wrong(fmt::format("the header would end at byte {}, and the file ends at {}",
                                 length + length_bytes, file_size),
                     file, "copy or download the file again");
    }
    return length;
}

Result<SafetensorsHeader> parse_header(std::string_view text, Bytes file_size,
                                       const CheckpointOptions& options, const std::string& file) {
    if (file_size < length_bytes || text.size() > file_size - length_bytes)
        return wrong("the header is longer than the file", file, format_page);
    HeaderReader reader(options.lenient);
    SIDESTEP_CHECK(read_json(text, reader, "the header", file, length_bytes));
    SafetensorsHeader header;
    header.tensors = std::move(reader.tensors);
    header.metadata = one_of_each(std::move(reader.metadata));
    header.data_begin = length_bytes + text.size();
    const NameTable::NameOf name = [&header](std::size_t i) {
        return std::string_view(header.tensors[i].name);
    };
    if (const auto twice = NameTable(header.tensors.size(), name).twice(name)) {
        return wrong(
            fmt::format("the header names tensor {} twice", shown(header.tensors[twice->first].name)), file,
            format_page);
    }
    SIDESTEP_CHECK(check_layout(header, file_size, options.lenient, file));
    return header;
}

}  // namespace sidestep::checkpoint
