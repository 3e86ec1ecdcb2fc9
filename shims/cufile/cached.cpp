#include "shims/cufile/cached.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <vector>

#include "shims/cufile/driver.hpp"
#include "shims/cufile/slots.hpp"

namespace sidestep::cufile {
namespace {

// A quarter of the read at a time, within these: little enough to overlap, and enough to be worth a copy.
constexpr Bytes least_chunk = Bytes{256} << 10;
constexpr Bytes chunk_multiple = Bytes{64} << 10;

Bytes chunk_of(Bytes size) {
    return std::clamp((size / 4 + chunk_multiple - 1) / chunk_multiple * chunk_multiple, least_chunk,
                      slot_bytes);
}

// Whether the page cache holds all of a part of the file, which begins and ends within it. Nothing is read ahead meanwhile.
// cachestat (Linux 6.5, the same number on every architecture) counts no page of an overlay's files, and the engine reads
// those. mincore tells users who may not write the file that all is there.
bool is_cached(const File& file, Bytes offset, Bytes size) {
    constexpr long cachestat_call = 451;
    const auto page = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
    const Bytes begin = offset / page * page;
    const Bytes pages = (offset + size - begin + page - 1) / page;
    struct {
        std::uint64_t offset, length;
    } range{offset, size};
    struct {
        std::uint64_t cached, dirty, in_writeback, evicted, recently_evicted;
    } counts{};
    if (::syscall(cachestat_call, file.own(), &range, &counts, 0u) == 0) return counts.cached >= pages;
    void* const map =
        ::mmap(nullptr, pages * page, PROT_READ, MAP_SHARED, file.own(), static_cast<off_t>(begin));
    if (map == MAP_FAILED) return false;
    std::vector<unsigned char> there(pages);
    const bool told = ::mincore(map, pages * page, there.data()) == 0;
    ::munmap(map, pages * page);
    return told &&
           std::all_of(there.begin(), there.end(), [](unsigned char bits) { return (bits & 1) != 0; });
}

// Bytes read without waiting: fewer where the page cache has no more, and -1 where it has none.
ssize_t read_now(const File& file, void* memory, Bytes size, Bytes offset) {
    const iovec part{memory, size};
    return ::preadv2(file.own(), &part, 1, static_cast<off_t>(offset), RWF_NOWAIT);
}

// Goes on until the file ends, or something is not in the cache. `chunk(at, size)` answers as read_now().
template <typename Chunk>
void read_chunks(CachedRead& read, Bytes size, Bytes at_once, Chunk&& chunk) {
    while (read.bytes < size && !read.refused) {
        const ssize_t got = chunk(read.bytes, std::min(at_once, size - read.bytes));
        read.ended = got == 0;
        if (got <= 0) return;
        read.bytes += static_cast<Bytes>(got);
    }
}

}  // namespace

CachedRead read_cached(const File& file, const Buffer& memory, Bytes offset) {
    CachedRead read;
    Bytes end = 0;
    read.refused = file.size(end);
    read.ended = !read.refused && offset >= end;
    if (read.refused || read.ended) return read;
    // Else the first read that finds nothing would start a reading of its own, which the engine then takes for what was there.
    if (!is_cached(file, offset, std::min(memory.size(), end - offset))) return read;
    if (!memory.place().is_gpu()) {
        read_chunks(read, memory.size(), memory.size(), [&](Bytes at, Bytes size) {
            return read_now(file, static_cast<char*>(memory.address()) + at, size, offset + at);
        });
        return read;
    }
    const Context& context = *Driver::get().context();
    auto slots = slots_of_this_thread(context);
    if (!slots) {
        read.refused = refusal_of(slots.error());
        return read;
    }
    std::array<std::optional<Transfer>, slot_count> copies;
    const auto finish = [&](std::optional<Transfer>& copy) {
        if (!copy) return;
        auto refused = wait(*copy, *slots);
        copy.reset();
        if (!read.refused) read.refused = std::move(refused);
    };
    std::size_t turn = 0;
    read_chunks(read, memory.size(), chunk_of(memory.size()), [&](Bytes at, Bytes size) -> ssize_t {
        std::optional<Transfer>& copy = copies[turn];
        void* const slot = (*slots)->at(turn);
        turn = (turn + 1) % slot_count;
        finish(copy);
        if (read.refused) return -1;
        const ssize_t got = read_now(file, slot, size, offset + at);
        if (got > 0)
            copy.emplace(context.copy(Buffer::host(slot, static_cast<Bytes>(got)),
                                      memory.slice(at, static_cast<Bytes>(got))));
        return got;
    });
    for (std::optional<Transfer>& copy : copies) finish(copy);
    return read;
}

}  // namespace sidestep::cufile
