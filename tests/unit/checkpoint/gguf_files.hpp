// GGUF files, made byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/checkpoint/checkpoint_files.hpp"

namespace sidestep {

inline std::string gguf_text(const std::string& text) {
    return number_bytes(text.size(), 8) + text;
}

// A key and its value: `type` is its gguf_metadata_value_type, `value` its bytes.
inline std::string gguf_pair(const std::string& key, std::uint32_t type, const std::string& value) {
    return gguf_text(key) + number_bytes(type, 4) + value;
}

// `extents` innermost first, as the file has them.
inline std::string gguf_tensor(const std::string& name, const std::vector<std::uint64_t>& extents,
                               std::uint32_t type, std::uint64_t offset) {
    std::string text = gguf_text(name) + number_bytes(extents.size(), 4);
    for (const std::uint64_t extent : extents) text += number_bytes(extent, 8);
    return text + number_bytes(type, 4) + number_bytes(offset, 8);
}

struct GgufParts {
    std::uint32_t version = 3;
    std::vector<std::string> pairs;
    std::vector<std::string> tensors;
    std::size_t data = 0;
    std::size_t alignment = 32;
};

inline std::string gguf_file(const GgufParts& parts) {
    std::string text = "GGUF";
    text += number_bytes(parts.version, 4) + number_bytes(parts.tensors.size(), 8) +
            number_bytes(parts.pairs.size(), 8);
    for (const std::string& pair : parts.pairs) text += pair;
    for (const std::string& tensor : parts.tensors) text += tensor;
    text.append((parts.alignment - text.size() % parts.alignment) % parts.alignment, '\0');
    text.append(parts.data, 'x');
    return text;
}

}  // namespace sidestep
