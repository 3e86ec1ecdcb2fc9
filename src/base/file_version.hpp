// A file at one moment, as one number.
#pragma once

#include <cstdint>

namespace sidestep::base {

// The upper 48 bits are of what a write changes, the lower 16 of what any change does: a new mode, owner or link too.
// `content` and `change` are mixed well. Never 0.
constexpr std::uint64_t file_version(std::uint64_t content, std::uint64_t change) {
    constexpr std::uint64_t lower = 0xFFFF;
    return ((content | (lower + 1)) & ~lower) | (change & lower);
}

// Whether nobody wrote to the file between two versions of it.
constexpr bool same_content(std::uint64_t version, std::uint64_t other) {
    return version >> 16 == other >> 16;
}

}  // namespace sidestep::base
