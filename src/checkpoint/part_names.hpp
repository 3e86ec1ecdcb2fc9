// Names of files that are parts of one model: model-00002-of-00005.safetensors. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sidestep::checkpoint {

struct PartName {
    std::string stem;    // "model"
    std::string ending;  // ".safetensors", ".fp16.safetensors"
    std::uint32_t number = 0;
    std::uint32_t count = 0;
    // As they are written, with zeros in front: at least five digits each.
    std::size_t number_digits = 0;
    std::string count_text;

    // That of another part of the model.
    std::string name_of(std::uint32_t other) const;
    // Equal for the parts of one model.
    std::string model() const;
};

// Nothing where the name is not "STEM-NNNNN-of-MMMMMENDING", or the number beyond the count.
std::optional<PartName> parse_part_name(std::string_view name);

// The parts that are lacking among these names of files, by their names: "a", "b", "c" and 7 more. Empty where
// none is. Counted from 1 or, where some part is number 0, from there.
std::string absent_parts(const std::vector<std::string>& names);

}  // namespace sidestep::checkpoint
