#include <sidestep/dtype.hpp>

#include <algorithm>
#include <array>

namespace sidestep {
namespace {

struct Entry {
    std::string_view name;
    int bits;
};

// In the order of Dtype. Names and sizes: safetensors/src/tensor.rs of huggingface/safetensors.
constexpr std::array<Entry, 22> entries{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};
static_assert(static_cast<std::size_t>(Dtype::other) == entries.size());

}  // namespace

int bits_of(Dtype dtype) {
    return dtype == Dtype::other ? 0 : entries[static_cast<std::size_t>(dtype)].bits;
}

std::string_view to_string(Dtype dtype) {
    return dtype == Dtype::other ? "other" : entries[static_cast<std::size_t>(dtype)].name;
}

std::optional<Dtype> parse_dtype(std::string_view name) {
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [name](const Entry& entry) { return entry.name == name; });
    if (found == entries.end()) return std::nullopt;
    return static_cast<Dtype>(found - entries.begin());
}

}  // namespace sidestep
