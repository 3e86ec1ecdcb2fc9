// Compiled for AVX2, on processors of which some have it.
#include "base/xxh3_functions.hpp"

#if defined(__x86_64__)
#ifndef __AVX2__
#error "this file is to be compiled with -mavx2"
#endif

namespace sidestep::base {

std::uint64_t xxh3_avx2_of_one(const void* data, std::size_t size, std::uint64_t seed) {
    return xxh3_of_one(data, size, seed);
}

std::uint64_t xxh3_avx2_of_many(const Xxh3Piece* pieces, std::size_t count, std::uint64_t seed) {
    return xxh3_of_many(pieces, count, seed);
}

}  // namespace sidestep::base
#endif
