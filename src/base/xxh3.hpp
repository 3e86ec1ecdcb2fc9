// XXH3-64, by AVX2 where the processor has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sidestep::base {

std::uint64_t xxh3(const void* data, std::size_t size, std::uint64_t seed = 0);

// Of several pieces as if they were one.
struct Xxh3Piece {
    const void* data;
    std::size_t size;
};
std::uint64_t xxh3(std::span<const Xxh3Piece> pieces, std::uint64_t seed = 0);

}  // namespace sidestep::base
