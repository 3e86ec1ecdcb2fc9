#include "tests/contents.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>

namespace sidestep::test {

void fill(void* to, std::size_t size, std::uint64_t seed, std::uint64_t first) {
    auto* const bytes = static_cast<unsigned char*>(to);
    for (std::size_t at = 0; at < size;) {
        // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), of the position.
        std::uint64_t word = (seed << 40) + (first + at) / 8 * 0x9e3779b97f4a7c15;
        word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
        word = (word ^ word >> 27) * 0x94d049bb133111eb;
        word ^= word >> 31;
        const std::size_t begin = (first + at) % 8, part = std::min(8 - begin, size - at);
        word >>= 8 * begin;
        std::memcpy(bytes + at, &word, part);
        at += part;
    }
}

std::string text_of(std::size_t size, std::uint64_t seed) {
    std::string text(size, '\0');
    fill(text.data(), size, seed);
    return text;
}

void put(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

std::string get(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    std::string text(file ? static_cast<std::size_t>(file.tellg()) : 0, '\0');
    file.seekg(0).read(text.data(), static_cast<std::streamsize>(text.size()));
    return text;
}

}  // namespace sidestep::test
