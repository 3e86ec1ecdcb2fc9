// What comes by chance, the same for the same seed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/slower.hpp"

namespace sidestep {

class Chance {
public:
    explicit Chance(std::uint64_t seed) : random_(seed) {}
    std::uint64_t any() { return random_(); }
    std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
    template <typename List>
    const auto& one_of(const List& list) {
        return list[below(std::size(list))];
    }
    // Often one of those at which something begins or ends.
    std::uint64_t number() {
        static constexpr std::uint64_t ends[] = {0,          1,
                                                 2,          3,
                                                 15,         16,
                                                 17,         63,
                                                 64,         127,
                                                 128,        1023,
                                                 1024,       4096,
                                                 0xffff,     0x10000,
                                                 1 << 20,    1ull << 31,
                                                 0xffffffff, 1ull << 32,
                                                 1ull << 47, (1ull << 48) - 1,
                                                 1ull << 48, 1ull << 63,
                                                 ~0ull - 1,  ~0ull};
        switch (below(4)) {
            case 0:
                return any();
            case 1:
                return any() >> below(64);
            default:
                return one_of(ends);
        }
    }
    std::string bytes(std::size_t length) {
        std::string bytes(length, '\0');
        for (char& byte : bytes) byte = static_cast<char>(any());
        return bytes;
    }

private:
    std::mt19937_64 random_;
};

// So many seeds that a test takes some seconds. SIDESTEP_HOSTILE_CASES says how many instead of `usual`, and
// SIDESTEP_HOSTILE_SEED which is the first one.
inline std::vector<std::uint64_t> seeds(std::uint64_t usual) {
    const auto from_environment = [](const char* name, std::uint64_t otherwise) {
        const char* const set = std::getenv(name);
        return set != nullptr ? std::strtoull(set, nullptr, 10) : otherwise;
    };
    const std::uint64_t first = from_environment("SIDESTEP_HOSTILE_SEED", 1);
    std::vector<std::uint64_t> all(from_environment("SIDESTEP_HOSTILE_CASES", usual / slower_by));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = first + i;
    return all;
}

}  // namespace sidestep
