// The types of a tensor's elements.
#pragma once

#include <optional>
#include <string_view>

#include <sidestep/api.h>
#include <sidestep/units.hpp>

namespace sidestep {

// Those of safetensors, in the order of its reference implementation (which is that of their alignment), and
// `other` for a type that only a GGUF file has: TensorInfo::type_name says which.
enum class Dtype {
    boolean,
    f4,
    f6_e2m3,
    f6_e3m2,
    u8,
    i8,
    f8_e5m2,
    f8_e4m3,
    f8_e8m0,
    f8_e4m3fnuz,
    f8_e5m2fnuz,
    i16,
    u16,
    f16,
    bf16,
    i32,
    u32,
    f32,
    c64,
    f64,
    i64,
    u64,
    other,
};

// Bits of one element; 0 for `other`.
SIDESTEP_API int bits_of(Dtype dtype);

// As safetensors spells it: "BF16", "F8_E4M3FNUZ", "BOOL"; "other" for `other`.
SIDESTEP_API std::string_view to_string(Dtype dtype);

// Nothing where safetensors knows no type of that name.
SIDESTEP_API std::optional<Dtype> parse_dtype(std::string_view name);

}  // namespace sidestep
