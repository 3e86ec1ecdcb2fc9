#include "checkpoint/part_names.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/names.hpp"

namespace sidestep::checkpoint {
namespace {

constexpr std::size_t min_digits = 5;
constexpr std::size_t max_digits = 9;
constexpr std::string_view digits = "0123456789";

// The digits that text ends with, or begins with.
std::string_view last_digits(std::string_view text) {
    const std::size_t before = text.find_last_not_of(digits);
    return before == std::string_view::npos ? text : text.substr(before + 1);
}

std::string_view first_digits(std::string_view text) {
    return text.substr(0, text.find_first_not_of(digits));
}

std::optional<std::uint32_t> number_of(std::string_view text) {
    std::uint32_t number = 0;
    if (text.size() < min_digits || text.size() > max_digits) return std::nullopt;
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number;
}

}  // namespace

std::string PartName::name_of(std::uint32_t other) const {
    return fmt::format("{}-{:0{}}-of-{}{}", stem, other, number_digits, count_text, ending);
}

std::string PartName::model() const {
    return fmt::format("{}-of-{}{}", stem, count_text, ending);
}

std::optional<PartName> parse_part_name(std::string_view name) {
    constexpr std::string_view between = "-of-";
    const std::size_t middle = name.rfind(between);
    if (middle == std::string_view::npos) return std::nullopt;
    const std::string_view number_text = last_digits(name.substr(0, middle));
    const std::string_view count_text = first_digits(name.substr(middle + between.size()));
    const auto number = number_of(number_text);
    const auto count = number_of(count_text);
    if (!number || !count || *count == 0 || *number > *count) return std::nullopt;
    const std::string_view stem = name.substr(0, middle - number_text.size());
    if (!stem.ends_with('-')) return std::nullopt;
    PartName part;
    part.stem = stem.substr(0, stem.size() - 1);
    part.ending = name.substr(middle + between.size() + count_text.size());
    part.number = *number;
    part.count = *count;
    part.number_digits = number_text.size();
    part.count_text = count_text;
    return part;
}

std::string absent_parts(const std::vector<std::string>& names) {
    struct Model {
        PartName one;
        std::set<std::uint32_t> numbers;
    };
    std::map<std::string, Model> models;
    for (const std::string& name : names) {
        auto part = parse_part_name(name);
        if (!part) continue;
        Model& model = models[part->model()];
        model.numbers.insert(part->number);
        model.one = std::move(*part);
    }
    constexpr std::uint64_t max_named = 3;
    std::string words;
    std::uint64_t absent = 0;
    std::uint64_t named = 0;
    for (const auto& [key, model] : models) {
        const std::uint32_t first = model.numbers.contains(0) ? 0 : 1;
        const auto end = model.numbers.lower_bound(first + model.one.count);
        const auto there = static_cast<std::uint64_t>(std::distance(model.numbers.begin(), end));
        absent += model.one.count - there;
        for (std::uint32_t i = 0; i < model.one.count && named < std::min(absent, max_named); ++i) {
            if (model.numbers.contains(first + i)) continue;
            words += (named++ == 0 ? "" : ", ") + shown(model.one.name_of(first + i));
        }
    }
    return absent <= named ? words : fmt::format("{} and {} more", words, absent - named);
}

}  // namespace sidestep::checkpoint
