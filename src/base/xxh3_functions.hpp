// What is compiled twice: for any processor, and for those with AVX2. Inline functions that are not static must not be called
// here: the linker would take one of the two for all.
#pragma once

#include "base/xxh3.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sidestep::base {

namespace {

[[maybe_unused]] std::uint64_t xxh3_of_one(const void* data, std::size_t size, std::uint64_t seed) {
    return XXH3_64bits_withSeed(data, size, seed);
}

[[maybe_unused]] std::uint64_t xxh3_of_many(const Xxh3Piece* pieces, std::size_t count, std::uint64_t seed) {
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset_withSeed(&state, seed);
    for (std::size_t i = 0; i < count; ++i) XXH3_64bits_update(&state, pieces[i].data, pieces[i].size);
    return XXH3_64bits_digest(&state);
}

}  // namespace

#if defined(__x86_64__)
// For processors that have AVX2.
std::uint64_t xxh3_avx2_of_one(const void* data, std::size_t size, std::uint64_t seed);
std::uint64_t xxh3_avx2_of_many(const Xxh3Piece* pieces, std::size_t count, std::uint64_t seed);
#endif

}  // namespace sidestep::base
