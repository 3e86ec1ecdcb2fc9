#include "pattern.hpp"

#include <algorithm>
#include <cstring>

#include "base/try.hpp"

namespace sidestep::cli {
namespace {

// Host memory that GPU memory is filled through.
constexpr Bytes window = Bytes{32} << 20;

// Writes the pattern's bytes [from, from + bytes) to `target`; `from` is a multiple of 8.
void write_pattern(void* target, Bytes from, Bytes bytes, Pattern pattern) {
    auto* out = static_cast<unsigned char*>(target);
    const std::uint64_t flip = pattern == Pattern::inverse ? ~std::uint64_t{0} : 0;
    std::uint64_t index = from / 8;
    for (Bytes at = 0; at < bytes; at += 8, ++index) {
        const std::uint64_t word = pattern_word(index) ^ flip;
        std::memcpy(out + at, &word, std::min<Bytes>(8, bytes - at));
    }
}

}  // namespace

std::uint64_t pattern_word(std::uint64_t index) {
    std::uint64_t word = (index + 1) * 0x9e3779b97f4a7c15u;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
}

Result<void> fill(const Context& context, const Buffer& memory, Pattern pattern,
                  const std::function<void(Bytes, Bytes)>& filled) {
    if (memory.size() == 0) return {};
    if (memory.place().is_host() && memory.place().node().empty()) {
        for (Bytes from = 0; from < memory.size(); from += window) {
            if (filled) filled(from, memory.size());
            write_pattern(static_cast<std::byte*>(memory.address()) + from, from,
                          std::min(window, memory.size() - from), pattern);
        }
        return {};
    }
    SIDESTEP_TRY(auto staging, context.allocate(Place::host(), std::min(window, memory.size())));
    for (Bytes from = 0; from < memory.size(); from += staging.size()) {
        if (filled) filled(from, memory.size());
        const Bytes bytes = std::min(staging.size(), memory.size() - from);
        write_pattern(staging.address(), from, bytes, pattern);
        SIDESTEP_CHECK(context.copy(staging.buffer().slice(0, bytes), memory.slice(from, bytes)).wait());
    }
    return {};
}

}  // namespace sidestep::cli
