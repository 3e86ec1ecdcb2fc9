#include "checkpoint/gguf_types.hpp"

#include <iterator>

namespace sidestep::checkpoint {
namespace {

// Numbers, names and sizes: enum ggml_type in docs/gguf.md of ggml-org/ggml, and GGML_QUANT_SIZES in
// gguf-py/gguf/constants.py of ggml-org/llama.cpp; Q8_1 as block_q8_1 of ggml has it.
constexpr GgufType types[] = {
    {0, "F32", 1, 4, Dtype::f32},
    {1, "F16", 1, 2, Dtype::f16},
    {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},
    {4, "Q4_2"},
    {5, "Q4_3"},
    {6, "Q5_0", 32, 22},
    {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},
    {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},
    {12, "Q4_K", 256, 144},
    {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},
    {15, "Q8_K", 256, 292},
    {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},
    {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136},
    {24, "I8", 1, 1, Dtype::i8},
    {25, "I16", 1, 2, Dtype::i16},
    {26, "I32", 1, 4, Dtype::i32},
    {27, "I64", 1, 8, Dtype::i64},
    {28, "F64", 1, 8, Dtype::f64},
    {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2, Dtype::bf16},
    {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"},
    {33, "Q4_0_8_8"},
    {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},
    {36, "IQ4_NL_4_4"},
    {37, "IQ4_NL_4_8"},
    {38, "IQ4_NL_8_8"},
    {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18},
    {42, "Q2_0", 64, 18},
};

}  // namespace

const GgufType* find_gguf_type(std::uint32_t number) {
    static_assert(types[std::size(types) - 1].number == std::size(types) - 1, "the number is the position");
    return number < std::size(types) ? &types[number] : nullptr;
}

}  // namespace sidestep::checkpoint
