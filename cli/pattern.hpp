// The bytes that memory sources hold.
#pragma once

#include <cstdint>
#include <functional>

#include <sidestep/sidestep.hpp>

namespace sidestep::cli {

enum class Pattern {
    known,    // word i (8 bytes, little-endian) is pattern_word(i)
    inverse,  // every byte differs from the known pattern's
};

// The i-th word of the pattern: SplitMix64's output function over the word's index (Steele, Lea and
// Flood, "Fast splittable pseudorandom number generators", 2014). It is one-to-one, so no word comes
// twice and a chunk that lands at the wrong offset is noticed.
std::uint64_t pattern_word(std::uint64_t index);

// Fills memory with the pattern; GPU memory is filled by copies from the host. `filled` hears how far it is: bytes done,
// bytes in all.
Result<void> fill(const Context& context, const Buffer& memory, Pattern pattern,
                  const std::function<void(Bytes, Bytes)>& filled = {});

}  // namespace sidestep::cli
