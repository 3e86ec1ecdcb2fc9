// What tests write into memory and files, and read back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sidestep::test {

// Bytes that do not repeat, the same for the same seed and position; the first of these is at `first`.
void fill(void* to, std::size_t size, std::uint64_t seed = 0, std::uint64_t first = 0);
std::string text_of(std::size_t size, std::uint64_t seed = 0);

void put(const std::string& path, const std::string& text);
// All of a file; nothing where there is none.
std::string get(const std::string& path);

}  // namespace sidestep::test
