// The types that tensors of GGUF files have.
#pragma once

#include <cstdint>
#include <string_view>

#include <sidestep/dtype.hpp>

namespace sidestep::checkpoint {

// A row of a tensor is stored in blocks of some elements each.
struct GgufType {
    std::uint32_t number = 0;
    std::string_view name;
    std::uint32_t block = 1;        // elements
    std::uint32_t block_bytes = 0;  // 0: files hold none of these any more
    Dtype dtype = Dtype::other;
};

// Null where there is no such type.
const GgufType* find_gguf_type(std::uint32_t number);

}  // namespace sidestep::checkpoint
