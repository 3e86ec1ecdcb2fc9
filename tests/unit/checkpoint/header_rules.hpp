// What the reference implementation accepts and refuses, and where this one is stricter. A table, so that a
// program beside the reference can go through it too.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/checkpoint/checkpoint_files.hpp"

namespace sidestep {

struct HeaderRule {
    std::string what;
    std::string file;
    bool reference = false;  // safetensors 0.8.0 takes it
    bool ours = false;       // the same but where the comment of the group says why not
    std::string words = {};  // of the error
};

// A header whose only tensor is "a", F32, one element, beside `more` members of its entry.
inline std::string one(const std::string& more = {}) {
    std::string text = R"({"a":{)";
    text += more;
    text += R"("dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    return safetensors_file(text, 4);
}

// The same with an entry of the given type, shape, and offsets.
inline std::string with(const std::string& dtype, const std::string& shape, const std::string& offsets,
                        std::size_t data) {
    std::string text = R"({"a":{"dtype":)";
    text += dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
    return safetensors_file(text, data);
}

// Nested lists in a member that does not matter. The header and the entry are two levels more.
inline std::string nested(std::size_t lists) {
    std::string text = R"("x":)";
    text.append(lists, '[');
    text.append(lists, ']');
    return one(text + ",");
}

std::vector<HeaderRule> length_rules();
std::vector<HeaderRule> json_rules();
std::vector<HeaderRule> entry_rules();
std::vector<HeaderRule> layout_rules();
// Where this implementation refuses what the reference takes.
std::vector<HeaderRule> stricter_rules();

}  // namespace sidestep
