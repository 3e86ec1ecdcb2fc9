#include "backends/file/slices.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace sidestep::backends::file {
namespace {

// Where the blocks of the file that may be moved whole begin and end; the former is not below the latter where there are none.
std::pair<Bytes, Bytes> whole_blocks(const Stretch& stretch) {
    const Bytes end = stretch.offset + stretch.size;
    const Bytes before = stretch.offset % direct_block;
    const Bytes after = (direct_block - end % direct_block) % direct_block;
    return {stretch.offset - before + (before <= stretch.room_before ? 0 : direct_block),
            end + after - (after <= stretch.room_after ? 0 : direct_block)};
}

// Reading d bytes a second from the device and c from the cache, with read-ahead reaching about half of d
// (measured: 1.6 GB/s with O_DIRECT in slices of 2 MiB, 0.73 through the cache, virtual disk on ext4, Linux
// 6.18): a slice of which the cache holds the share h takes 1 / d around it, and (1 - h) / (d / 2) + 1 / c
// through it. The second is less from h = 1/2 + d / 2c on: 3/4 where a thread copies twice as fast as the
// device delivers. Pages that are not on the device yet are read from the cache in any case: to go around
// them the kernel would have to write them first.
bool cheaper_through_cache(const driver::CachedPart& part, Bytes size) {
    return part.dirty || part.bytes >= size - size / 4;
}

}  // namespace

void Slice::go_through_cache() {
    const Bytes asked_for = asked();
    address += before;
    offset += before;
    size = asked_for;
    before = 0;
    after = 0;
    direct = false;
}

bool can_go_direct(const Stretch& stretch, Bytes memory_alignment) {
    const auto [begin, end] = whole_blocks(stretch);
    return begin < end &&
           (reinterpret_cast<std::uintptr_t>(stretch.address) - stretch.offset) % memory_alignment == 0;
}

std::vector<Slice> cut(const Stretch& stretch, bool direct, Bytes size) {
    std::vector<Slice> slices;
    slices.reserve(stretch.size / size + 3);
    const Bytes first = stretch.offset;
    const Bytes last = stretch.offset + stretch.size;
    const auto add = [&](Bytes begin, Bytes end, bool around) {
        while (begin < end) {
            // A small rest costs less as part of this request than as one of its own.
            const Bytes next = end - begin < size + min_question ? end : begin + size;
            const auto distance = static_cast<std::ptrdiff_t>(begin) - static_cast<std::ptrdiff_t>(first);
            Slice slice{stretch.address + distance, begin, next - begin, around};
            slice.before = first - std::min(first, begin);
            slice.after = next - std::min(last, next);
            slices.push_back(slice);
            begin = next;
        }
    };
    if (direct) {
        const auto [begin, end] = whole_blocks(stretch);
        add(first, std::max(first, begin), false);
        add(begin, end, true);
        add(std::min(last, end), last, false);
    } else {
        add(first, last, false);
    }
    return slices;
}

Bytes part_of(Bytes bytes, double share) {
    return std::min(bytes, static_cast<Bytes>(static_cast<double>(bytes) * share));
}

void use_cache_where_cheaper(std::vector<Slice>& slices, const AskCache& ask) {
    Bytes begin = 0, end = 0;
    std::size_t direct = 0;
    for (Slice& slice : slices) {
        if (slice.direct && slice.asked() < min_question) slice.go_through_cache();
        if (!slice.direct) continue;
        if (direct++ == 0) begin = slice.offset;
        end = slice.offset + slice.size;
    }
    if (direct == 0) return;
    const auto all = ask(begin, end - begin);
    if (all && all->bytes == 0 && !all->dirty) return;
    const bool same = !all || direct == 1 || all->bytes == end - begin;
    for (Slice& slice : slices) {
        if (!slice.direct) continue;
        const auto part = same ? all : ask(slice.offset, slice.size);
        const Bytes size = same ? end - begin : slice.size;
        if (part && !cheaper_through_cache(*part, size)) continue;
        slice.go_through_cache();
        if (part)
            slice.missing =
                part_of(slice.size, static_cast<double>(size - part->bytes) / static_cast<double>(size));
    }
}

}  // namespace sidestep::backends::file
