// What a Checkpoint says of itself: one line, a table, JSON.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "checkpoint/content.hpp"

namespace sidestep {
namespace {

using checkpoint::json_text;

// A name as a cell of the table: whole and as it is, unless it would break the table.
std::string cell(std::string_view name) {
    const std::string words = checkpoint::shown(name, name.size());
    return words.substr(1, words.size() - 2);
}

// The beginning of a text that may be long and have many lines.
std::string beginning(std::string_view text) {
    constexpr std::size_t max = 60;
    const std::string words = checkpoint::shown(text, max);
    return words.substr(1, words.size() - 2);
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Types and the bytes of their tensors, most first.
std::vector<std::pair<std::string, Bytes>> types_of(const std::vector<TensorInfo>& tensors) {
    std::map<std::string, Bytes> bytes;
    for (const TensorInfo& tensor : tensors) bytes[tensor.type_name] += tensor.bytes;
    std::vector<std::pair<std::string, Bytes>> types(bytes.begin(), bytes.end());
    std::stable_sort(types.begin(), types.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    return types;
}

std::string counted(std::size_t count, const char* one) {
    return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

// About as many bytes as the JSON will have, so that hundreds of megabytes are not copied as the text grows.
std::size_t json_size(const std::vector<TensorInfo>& tensors,
                      const std::vector<std::pair<std::string, std::string>>& metadata) {
    std::size_t bytes = 4096;
    for (const TensorInfo& tensor : tensors) bytes += 160 + tensor.name.size();
    for (const auto& [key, value] : metadata) bytes += 16 + key.size() + value.size();
    return bytes + bytes / 32;
}

// Adds a member that is a list, an item a line.
template <typename Items, typename Line>
void append_list(std::string& text, const char* member, const Items& items, const Line& line) {
    text += fmt::format(",\n  \"{}\": [", member);
    const char* separator = "\n";
    for (const auto& item : items) {
        text += separator;
        text += "    ";
        text += line(item);
        separator = ",\n";
    }
    text += items.empty() ? "]" : "\n  ]";
}

}  // namespace

std::string Checkpoint::summary() const {
    std::string text = fmt::format("{}, {} in {}", counted(tensors().size(), "tensor"), format_bytes(bytes()),
                                   counted(files().size(), "file"));
    const char* separator = ": ";
    for (const auto& [type, type_bytes] : types_of(tensors())) {
        const double share =
            bytes() == 0 ? 0 : static_cast<double>(type_bytes) / static_cast<double>(bytes());
        text += fmt::format("{}{} {:.3g} %", separator, cell(type), 100 * share);
        separator = ", ";
    }
    return text;
}

std::string Checkpoint::to_text() const {
    struct Widths {
        std::size_t name = 4, type = 4, shape = 5, bytes = 5;
    } widths;
    for (const TensorInfo& tensor : tensors()) {
        widths.name = std::max(widths.name, cell(tensor.name).size());
        widths.type = std::max(widths.type, cell(tensor.type_name).size());
        widths.shape = std::max(widths.shape, shape_text(tensor.shape).size());
        widths.bytes = std::max(widths.bytes, std::to_string(tensor.bytes).size());
    }
    std::string text;
    const auto line = [&](const std::string& name, const std::string& type, const std::string& shape,
                          const std::string& bytes, const std::string& file) {
        text += fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>{}}  {}\n", name, widths.name, type, widths.type,
                            shape, widths.shape, bytes, widths.bytes, file);
    };
    line("name", "type", "shape", "bytes", "file");
    for (const TensorInfo& tensor : tensors()) {
        line(cell(tensor.name), cell(tensor.type_name), shape_text(tensor.shape),
             std::to_string(tensor.bytes), cell(checkpoint::base_name(files()[tensor.file].path)));
    }
    text += fmt::format("\n{}\n", summary());
    if (!metadata().empty()) text += "metadata:\n";
    for (const auto& [key, value] : metadata())
        text += fmt::format("  {}: {}\n", cell(key), beginning(value));
    for (const std::string& note : notes()) text += fmt::format("note: {}\n", note);
    return text;
}

std::string Checkpoint::to_json() const {
    std::string text;
    text.reserve(json_size(tensors(), metadata()));
    text += fmt::format("{{\n  \"version\": 1,\n  \"path\": {},\n  \"bytes\": {}", json_text(content_->path),
                        bytes());
    append_list(text, "types", types_of(tensors()), [](const auto& type) {
        return fmt::format("{{\"type\": {}, \"bytes\": {}}}", json_text(type.first), type.second);
    });
    append_list(text, "files", files(), [](const CheckpointFile& file) {
        const std::string node = file.node.empty() ? "" : fmt::format("\"node\": {}, ", json_text(file.node));
        return fmt::format("{{{}\"path\": {}, \"size\": {}, \"data_begin\": {}}}", node, json_text(file.path),
                           file.size, file.data_begin);
    });
    append_list(text, "tensors", tensors(), [](const TensorInfo& tensor) {
        return fmt::format(
            "{{\"name\": {}, \"type\": {}, \"dtype\": \"{}\", \"shape\": {}, \"file\": {}, \"offset\": {}, "
            "\"bytes\": {}}}",
            json_text(tensor.name), json_text(tensor.type_name), to_string(tensor.dtype),
            shape_text(tensor.shape), tensor.file, tensor.offset, tensor.bytes);
    });
    text += ",\n  \"metadata\": {";
    const char* separator = "\n";
    for (const auto& [key, value] : metadata()) {
        text += separator;
        text += "    ";
        text += json_text(key);
        text += ": ";
        text += json_text(value);
        separator = ",\n";
    }
    text += metadata().empty() ? "}" : "\n  }";
    append_list(text, "notes", notes(), [](const std::string& note) { return json_text(note); });
    return text + "\n}\n";
}

}  // namespace sidestep
