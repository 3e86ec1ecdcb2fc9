#include "checkpoint/gguf.hpp"

#include <algorithm>
#include <bit>
#include <charconv>

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "base/try.hpp"
#include "checkpoint/gguf_types.hpp"
#include "checkpoint/names.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr Bytes default_alignment = 32;
constexpr Bytes largest_alignment = Bytes{1} << 30;
// The specification allows 4 axes and may allow more.
constexpr std::uint32_t max_axes = 8;
constexpr Bytes longest_name = 65535;
constexpr int deepest_array = 8;

// gguf_metadata_value_type; its number is the position.
enum class Value : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    text,
    array,
    u64,
    i64,
    f64,
    none
};
struct ValueType {
    const char* name;
    Bytes bytes;  // 0: not always the same
};
constexpr ValueType value_types[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                                     {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
                                     {"u64", 8}, {"i64", 8}, {"f64", 8}};
static_assert(std::size(value_types) == static_cast<std::size_t>(Value::none));

// Stops reading: more bytes of the file are needed.
constexpr ErrorCode wants_more = ErrorCode::end_of_file;

// Takes one value after the other from the beginning of a file.
class Reader {
public:
    Reader(std::string_view head, Bytes file_size, const std::string& file)
        : head_(head), file_size_(file_size), file_(file) {}

    Bytes at() const { return at_; }
    // Bytes of the head that are wanted, after an error of code `wants_more`.
    Bytes wanted() const { return wanted_; }

    Error wrong(std::string message, std::string hint = {}) const {
        return Error{ErrorCode::invalid_argument, std::move(message), fmt::format("{}: byte {}", file_, at_),
                     std::move(hint)};
    }

    Result<std::string_view> take(Bytes bytes, const char* what) {
        if (bytes > file_size_ - at_) {
            return wrong(
                fmt::format("the file ends at byte {}, within {} of {} bytes", file_size_, what, bytes),
                "copy or download the file again");
        }
        if (bytes > head_.size() - at_) {
            wanted_ = at_ + bytes;
            return Error{wants_more, "more of the file is needed", file_, {}};
        }
        const std::string_view taken = head_.substr(at_, bytes);
        at_ += bytes;
        return taken;
    }

    template <typename Number>
    Result<Number> number(const char* what) {
        SIDESTEP_TRY(const std::string_view bytes, take(sizeof(Number), what));
        std::uint64_t value = 0;
        for (std::size_t i = sizeof(Number); i-- > 0;)
            value = value << 8 | static_cast<unsigned char>(bytes[i]);
        return static_cast<Number>(value);
    }

    Result<std::string_view> text(const char* what, Bytes longest = ~Bytes{0}) {
        SIDESTEP_TRY(const auto length, number<std::uint64_t>(what));
        if (length > longest)
            return wrong(fmt::format("{} has {} bytes, more than {}", what, length, longest));
        return take(length, what);
    }

private:
    std::string_view head_;
    Bytes file_size_;
    const std::string& file_;
    Bytes at_ = 0;
    Bytes wanted_ = 0;
};

class Parser {
public:
    Parser(std::string_view head, Bytes file_size, const std::string& file)
        : reader_(head, file_size, file), file_size_(file_size), file_(file) {}

    Result<GgufHeader> parse() {
        const auto done = read();
        if (!done && done.error().code == wants_more) {
            GgufHeader more;
            more.needs = reader_.wanted();
            return more;
        }
        if (!done) return done.error();
        return std::move(header_);
    }

private:
    Result<void> read() {
        SIDESTEP_CHECK(read_version());
        SIDESTEP_TRY(const auto tensors, reader_.number<std::uint64_t>("the number of tensors"));
        SIDESTEP_TRY(const auto pairs, reader_.number<std::uint64_t>("the number of metadata"));
        for (std::uint64_t i = 0; i < pairs; ++i) SIDESTEP_CHECK(read_pair());
        const NameTable::NameOf key = [this](std::size_t i) {
            return std::string_view(header_.metadata[i].first);
        };
        if (const auto twice = NameTable(header_.metadata.size(), key).twice(key))
            return reader_.wrong(fmt::format("the metadata {} appears twice", shown(key(twice->first))));
        for (std::uint64_t i = 0; i < tensors; ++i) SIDESTEP_CHECK(read_tensor());
        const NameTable::NameOf name = [this](std::size_t i) {
            return std::string_view(header_.tensors[i].name);
        };
        if (const auto twice = NameTable(header_.tensors.size(), name).twice(name))
            return reader_.wrong(fmt::format("tensor {} appears twice", shown(name(twice->first))));
        read_split();
        return place_tensors();
    }

    // Values that are not numbers say nothing.
    void read_split() {
        for (const auto& [key, value] : header_.metadata) {
            std::uint64_t number = 0;
            const auto read = std::from_chars(value.data(), value.data() + value.size(), number);
            if (read.ec != std::errc() || read.ptr != value.data() + value.size()) continue;
            if (key == "split.no") header_.split.number = number;
            if (key == "split.count") header_.split.count = std::max<std::uint64_t>(number, 1);
            if (key == "split.tensors.count") header_.split.tensors = number;
        }
    }

    Result<void> read_version() {
        SIDESTEP_TRY(const auto magic, reader_.take(gguf_magic.size(), "the mark of GGUF files"));
        if (magic != gguf_magic) return reader_.wrong("this is no GGUF file");
        SIDESTEP_TRY(const auto version, reader_.number<std::uint32_t>("the version"));
        if (version == 2 || version == 3) return {};
        const bool swapped = (version & 0xFFFF) == 0 && version != 0;
        return reader_.wrong(
            swapped ? std::string("the file is big endian, which is not read")
                    : fmt::format("the file is GGUF version {}, and versions 2 and 3 are read", version),
            "convert the file with the tools of llama.cpp");
    }

    Result<Value> value_type(const std::string& of) {
        SIDESTEP_TRY(const auto number, reader_.number<std::uint32_t>("the type of a value"));
        if (number < static_cast<std::uint32_t>(Value::none)) return static_cast<Value>(number);
        return reader_.wrong(fmt::format("the metadata {} has the unknown value type {}", of, number));
    }

    Result<void> read_pair() {
        SIDESTEP_TRY(const auto key, reader_.text("the key of a metadata", longest_name));
        const std::string words = shown(key);
        if (first_bad_utf8(key)) return reader_.wrong(fmt::format("the key {} is no UTF-8", words));
        SIDESTEP_TRY(const Value type, value_type(words));
        if (key == "general.alignment") {
            if (type != Value::u32) return reader_.wrong("general.alignment is not a number of 32 bits");
            SIDESTEP_CHECK(read_alignment());
            header_.metadata.emplace_back(key, std::to_string(alignment_));
            return {};
        }
        if (type != Value::array) {
            SIDESTEP_TRY(std::string text, read_value(type, words));
            header_.metadata.emplace_back(key, std::move(text));
            return {};
        }
        SIDESTEP_TRY(std::string text, read_array(words, 1));
        header_.metadata.emplace_back(key, std::move(text));
        return {};
    }

    Result<void> read_alignment() {
        SIDESTEP_TRY(alignment_, reader_.number<std::uint32_t>("the alignment"));
        // The specification asks for a multiple of 8.
        if (alignment_ != 0 && alignment_ % 8 == 0 && alignment_ <= largest_alignment) return {};
        return reader_.wrong(
            fmt::format("general.alignment is {}, which is not a multiple of 8", alignment_));
    }

    // Any value but an array, as text.
    Result<std::string> read_value(Value type, const std::string& of) {
        if (type == Value::text) {
            SIDESTEP_TRY(const auto text, reader_.text("a text of the metadata"));
            if (first_bad_utf8(text)) return reader_.wrong(fmt::format("the metadata {} is no UTF-8", of));
            return std::string(text);
        }
        SIDESTEP_TRY(const auto bytes, reader_.take(value_types[static_cast<std::size_t>(type)].bytes,
                                                    "a value of the metadata"));
        std::uint64_t raw = 0;
        for (std::size_t i = bytes.size(); i-- > 0;) raw = raw << 8 | static_cast<unsigned char>(bytes[i]);
        switch (type) {
            case Value::i8:
                return std::to_string(static_cast<std::int8_t>(raw));
            case Value::i16:
                return std::to_string(static_cast<std::int16_t>(raw));
            case Value::i32:
                return std::to_string(static_cast<std::int32_t>(raw));
            case Value::i64:
                return std::to_string(static_cast<std::int64_t>(raw));
            case Value::f32:
                return fmt::format("{}", std::bit_cast<float>(static_cast<std::uint32_t>(raw)));
            case Value::f64:
                return fmt::format("{}", std::bit_cast<double>(raw));
            case Value::boolean:
                if (raw > 1)
                    return reader_.wrong(fmt::format("the metadata {} is neither true nor false", of));
                return std::string(raw == 1 ? "true" : "false");
            default:
                return std::to_string(raw);
        }
    }

    // Passes over an array: "u32[5]".
    Result<std::string> read_array(const std::string& of, int depth) {
        if (depth > deepest_array)
            return reader_.wrong(
                fmt::format("the metadata {} has more than {} arrays in one another", of, deepest_array));
        SIDESTEP_TRY(const Value type, value_type(of));
        SIDESTEP_TRY(const auto count, reader_.number<std::uint64_t>("the length of an array"));
        const ValueType& element = value_types[static_cast<std::size_t>(type)];
        if (element.bytes != 0) {
            Bytes all = 0;
            if (__builtin_mul_overflow(count, element.bytes, &all)) all = ~Bytes{0};
            SIDESTEP_CHECK(reader_.take(all, "an array of the metadata"));
        }
        for (std::uint64_t i = 0; element.bytes == 0 && i < count; ++i) {
            if (type == Value::text) {
                SIDESTEP_CHECK(reader_.text("a text of the metadata"));
            } else {
                SIDESTEP_CHECK(read_array(of, depth + 1));
            }
        }
        return fmt::format("{}[{}]", element.name, count);
    }

    Result<void> read_tensor() {
        TensorInfo tensor;
        SIDESTEP_TRY(const auto name, reader_.text("the name of a tensor", longest_name));
        tensor.name = name;
        const std::string words = shown(name);
        if (first_bad_utf8(name)) return reader_.wrong(fmt::format("the name {} is no UTF-8", words));
        SIDESTEP_TRY(const auto axes, reader_.number<std::uint32_t>("the number of axes"));
        if (axes > max_axes)
            return reader_.wrong(fmt::format("tensor {} has {} axes, more than {}", words, axes, max_axes));
        for (std::uint32_t i = 0; i < axes; ++i) {
            SIDESTEP_TRY(const auto extent, reader_.number<std::uint64_t>("an extent"));
            tensor.shape.push_back(extent);
        }
        // The file has the innermost axis first.
        std::reverse(tensor.shape.begin(), tensor.shape.end());
        SIDESTEP_TRY(const auto type, reader_.number<std::uint32_t>("the type of a tensor"));
        SIDESTEP_CHECK(measure(tensor, type, words));
        SIDESTEP_TRY(tensor.offset, reader_.number<std::uint64_t>("an offset"));
        if (tensor.offset % alignment_ != 0) {
            return reader_.wrong(
                fmt::format("tensor {} begins at byte {} of the data, which is not a multiple of {}", words,
                            tensor.offset, alignment_));
        }
        header_.tensors.push_back(std::move(tensor));
        return {};
    }

    // Gives a tensor its type and its number of bytes.
    Result<void> measure(TensorInfo& tensor, std::uint32_t number, const std::string& words) const {
        const GgufType* type = find_gguf_type(number);
        if (type == nullptr)
            return reader_.wrong(
                fmt::format("tensor {} is of type {}, which is not known here", words, number));
        if (type->block_bytes == 0) {
            return reader_.wrong(
                fmt::format("tensor {} is of type {}, which files hold no more", words, type->name),
                "convert the model again with a current llama.cpp");
        }
        tensor.dtype = type->dtype;
        tensor.type_name = type->name;
        const std::uint64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
        if (row % type->block != 0) {
            return reader_.wrong(
                fmt::format("tensor {} has rows of {} elements, which are not whole blocks of {} ({})", words,
                            row, type->name, type->block));
        }
        std::uint64_t elements = 1;
        bool too_many = false;
        for (const std::uint64_t extent : tensor.shape)
            too_many |= __builtin_mul_overflow(elements, extent, &elements);
        if (too_many ||
            __builtin_mul_overflow(elements / type->block, Bytes{type->block_bytes}, &tensor.bytes))
            return reader_.wrong(fmt::format("tensor {} has more elements than 64 bits can count", words));
        return {};
    }

    // The offsets are those behind the header, from the next multiple of the alignment on.
    Result<void> place_tensors() {
        const Bytes data_begin = base::round_up(reader_.at(), alignment_);
        header_.data_begin = std::min(data_begin, file_size_);
        for (TensorInfo& tensor : header_.tensors) {
            Bytes end = 0;
            const bool too_far = __builtin_add_overflow(tensor.offset, data_begin, &tensor.offset) ||
                                 __builtin_add_overflow(tensor.offset, tensor.bytes, &end);
            if (!too_far && end <= file_size_) continue;
            return Error{ErrorCode::invalid_argument,
                         fmt::format("tensor {} of {} bytes ends beyond the file, which has {} bytes",
                                     shown(tensor.name), tensor.bytes, file_size_),
                         file_, "copy or download the file again"};
        }
        std::stable_sort(header_.tensors.begin(), header_.tensors.end(),
                         [](const TensorInfo& a, const TensorInfo& b) {
                             return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
                         });
        const TensorInfo* before = nullptr;
        for (const TensorInfo& tensor : header_.tensors) {
            if (tensor.bytes == 0) continue;
            if (before != nullptr && before->offset + before->bytes > tensor.offset) {
                return Error{ErrorCode::invalid_argument,
                             fmt::format("the tensors {} and {} overlap at byte {}", shown(before->name),
                                         shown(tensor.name), tensor.offset),
                             file_,
                             {}};
            }
            before = &tensor;
        }
        note_strays();
        return {};
    }

    // Padding up to the alignment is none.
    void note_strays() {
        Bytes end = header_.data_begin;  // of what is known
        Bytes between = 0;
        std::size_t gaps = 0;
        for (const TensorInfo& tensor : header_.tensors) {
            if (tensor.bytes == 0) continue;
            if (tensor.offset > end) between += tensor.offset - end, ++gaps;
            end = std::max(end, base::round_up(tensor.offset + tensor.bytes, alignment_));
        }
        if (gaps > 0)
            header_.notes.push_back(
                fmt::format("{}: {} bytes in {} gap{} before tensors belong to none of them", file_, between,
                            gaps, gaps == 1 ? "" : "s"));
        if (end < file_size_)
            header_.notes.push_back(
                fmt::format("{}: {} bytes after the last tensor belong to none", file_, file_size_ - end));
    }

    Reader reader_;
    Bytes file_size_;
    const std::string& file_;
    Bytes alignment_ = default_alignment;
    GgufHeader header_;
};

}  // namespace

Result<GgufHeader> parse_gguf(std::string_view head, Bytes file_size, const std::string& file) {
    if (head.size() > file_size) head = head.substr(0, file_size);
    return Parser(head, file_size, file).parse();
}

}  // namespace sidestep::checkpoint
