#include "base/xxh3.hpp"

#include "base/xxh3_functions.hpp"

namespace sidestep::base {
namespace {

bool has_avx2() {
#if defined(__x86_64__)
    static const bool has = __builtin_cpu_supports("avx2") != 0;
    return has;
#else
    return false;
#endif
}

}  // namespace

std::uint64_t xxh3(const void* data, std::size_t size, std::uint64_t seed) {
#if defined(__x86_64__)
    if (has_avx2()) return xxh3_avx2_of_one(data, size, seed);
#endif
    return xxh3_of_one(data, size, seed);
}

std::uint64_t xxh3(std::span<const Xxh3Piece> pieces, std::uint64_t seed) {
#if defined(__x86_64__)
    if (has_avx2()) return xxh3_avx2_of_many(pieces.data(), pieces.size(), seed);
#endif
    return xxh3_of_many(pieces.data(), pieces.size(), seed);
}

}  // namespace sidestep::base
