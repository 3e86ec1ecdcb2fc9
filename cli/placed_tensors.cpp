#include "placed_tensors.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "operand.hpp"

namespace sidestep::cli {
namespace {

struct PlacedTensor {
    std::string name;
    std::string place;
    Dtype dtype = Dtype::u8;
    std::optional<std::vector<std::uint64_t>> shape;
};

Error wrong(std::string message, const std::string& source, std::string hint = {}) {
    if (hint.empty())
        hint =
            "write NAME=PLACE[,dtype=TYPE][,shape=EXTENTxEXTENT...], such as "
            "w=file:/data/w.bin,dtype=f32,shape=2x3";
    return Error{ErrorCode::invalid_argument, std::move(message), source, std::move(hint)};
}

std::string in_capitals(std::string_view text) {
    std::string capitals(text);
    std::transform(capitals.begin(), capitals.end(), capitals.begin(),
                   [](char letter) { return letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter; });
    return capitals;
}

Result<Dtype> read_dtype(std::string_view text, const std::string& source) {
    if (const auto dtype = parse_dtype(in_capitals(text))) return *dtype;
    std::string known;
    for (int i = 0; i < static_cast<int>(Dtype::other); ++i)
        known += fmt::format("{}{}", i > 0 ? ", " : "", to_string(static_cast<Dtype>(i)));
    return wrong(fmt::format("safetensors has no type '{}'", text), source, "it has " + known);
}

// "2x3"; nothing at all is a scalar's.
Result<std::vector<std::uint64_t>> read_shape(std::string_view text, const std::string& source) {
    std::vector<std::uint64_t> shape;
    for (std::size_t begin = 0; begin < text.size() + 1 && !text.empty();) {
        const std::size_t end = std::min(text.find('x', begin), text.size());
        std::uint64_t extent = 0;
        const auto [stop, failed] = std::from_chars(text.data() + begin, text.data() + end, extent);
        if (failed != std::errc() || stop != text.data() + end)
            return wrong(fmt::format("'{}' is no shape", text), source);
        shape.push_back(extent);
        begin = end + 1;
    }
    return shape;
}

// Only what has the form of a type or a shape is taken from the end: names of files may hold commas.
Result<PlacedTensor> read_tensor(const std::string& source) {
    const std::size_t equals = source.find('=');
    PlacedTensor tensor{source.substr(0, equals), source.substr(equals + 1), Dtype::u8, {}};
    bool typed = false;
    for (std::size_t comma; (comma = tensor.place.rfind(',')) != std::string::npos;) {
        const std::string option = tensor.place.substr(comma + 1);
        if (!typed && option.starts_with("dtype=")) {
            SIDESTEP_TRY(const auto dtype, read_dtype(std::string_view(option).substr(6), source));
            tensor.dtype = dtype;
            typed = true;
        } else if (!tensor.shape && option.starts_with("shape=")) {
            SIDESTEP_TRY(auto shape, read_shape(std::string_view(option).substr(6), source));
            tensor.shape = std::move(shape);
        } else {
            break;
        }
        tensor.place.resize(comma);
    }
    return tensor;
}

Result<Buffer> buffer_of(const Context& context, const Operand& operand, const std::string& source) {
    const Place& place = operand.place;
    if (!place.is_file() && !place.is_shared())
        return wrong(fmt::format("{} has no bytes and no size of its own", place.to_string()), source,
                     "a tensor lies in a file, or in memory that a program publishes: sidestep help publish");
    const auto range = [&](Bytes offset, Bytes size) {
        return (place.is_file() ? Buffer::file(place.path(), offset, size)
                                : Buffer::shared(place.path(), offset, size))
            .on(place.node());
    };
    if (operand.range) return range(operand.range->offset, operand.range->size);
    SIDESTEP_TRY(const auto size,
                 context.size(place.is_file() ? Buffer::file(place.path()).on(place.node())
                                              : Buffer::shared(place.path()).on(place.node())));
    return range(0, size);
}

Result<TensorToSave> placed_tensor(const Context& context, const std::string& source) {
    SIDESTEP_TRY(auto tensor, read_tensor(source));
    SIDESTEP_TRY(const auto operand, parse_operand(tensor.place, source.c_str()));
    SIDESTEP_TRY(const auto data, buffer_of(context, operand, source));
    const auto bits = static_cast<Bytes>(bits_of(tensor.dtype));
    if (!tensor.shape) {
        if (data.size() % std::max<Bytes>(bits / 8, 1) != 0)
            return wrong(
                fmt::format("{} bytes are no whole number of {}", data.size(), to_string(tensor.dtype)),
                source);
        tensor.shape = {data.size() * 8 / bits};
    }
    return TensorToSave{std::move(tensor.name), tensor.dtype, std::move(*tensor.shape), data};
}

}  // namespace

bool is_placed_tensor(const std::string& source) {
    const std::size_t equals = source.find('=');
    std::error_code ignored;
    return equals != std::string::npos && equals > 0 && !Place::parse(source) &&
           !std::filesystem::exists(source, ignored);
}

Result<std::vector<TensorToSave>> placed_tensors(const Context& context,
                                                 const std::vector<std::string>& sources) {
    std::vector<TensorToSave> tensors;
    for (const std::string& source : sources) {
        if (!is_placed_tensor(source))
            return wrong("a checkpoint is saved alone, and a tensor in a place needs a name", source);
        SIDESTEP_TRY(auto tensor, placed_tensor(context, source));
        tensors.push_back(std::move(tensor));
    }
    return tensors;
}

}  // namespace sidestep::cli
