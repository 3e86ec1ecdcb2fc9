#include "backends/file/slices.hpp"

#include <algorithm>
#include <cstdint>

namespace sidestep::backends::file {
namespace {

struct Blocks {
    Bytes begin = 0;
    Bytes end = 0;
};

// The whole blocks within a range of a file; begin >= end where there are none.
Blocks whole_blocks(Bytes offset, Bytes size) {
    return {(offset + direct_block - 1) / direct_block * direct_block,
            (offset + size) / direct_block * direct_block};
}

}  // namespace

bool can_go_direct(const char* address, Bytes offset, Bytes size) {
    const auto [begin, end] = whole_blocks(offset, size);
    return begin < end && reinterpret_cast<std::uintptr_t>(address) % direct_block == offset % direct_block;
}

std::vector<Slice> cut(char* address, Bytes offset, Bytes size, bool direct) {
    std::vector<Slice> slices;
    slices.reserve(size / slice_size + 3);
    const auto add = [&](Bytes begin, Bytes end, bool around) {
        while (begin < end) {
            const Bytes bytes = std::min(slice_size, end - begin);
            slices.push_back({address + (begin - offset), begin, bytes, around});
            begin += bytes;
        }
    };
    if (direct && can_go_direct(address, offset, size)) {
        const auto [begin, end] = whole_blocks(offset, size);
        add(offset, begin, false);
        add(begin, end, true);
        add(end, offset + size, false);
    } else {
        add(offset, offset + size, false);
    }
    return slices;
}

}  // namespace sidestep::backends::file
