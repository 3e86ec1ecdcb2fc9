#include "driver/page_cache.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "driver/memory_map.hpp"

namespace sidestep::driver {
namespace {

// Linux 6.5, the same number on every architecture; the headers of older systems lack it.
constexpr long cachestat_call = 451;

struct CachestatRange {
    std::uint64_t offset;
    std::uint64_t length;
};

// In pages.
struct Cachestat {
    std::uint64_t cached;
    std::uint64_t dirty;
    std::uint64_t in_writeback;
    std::uint64_t evicted;
    std::uint64_t recently_evicted;
};

std::optional<CachedPart> by_cachestat(int fd, Bytes offset, Bytes size) {
    CachestatRange range{offset, size};
    Cachestat pages{};
    if (::syscall(cachestat_call, fd, &range, &pages, 0u) != 0) return std::nullopt;
    return CachedPart{std::min(size, pages.cached * page_size()), pages.dirty + pages.in_writeback > 0};
}

// To other users the kernel reports all pages as present, so that they cannot learn what somebody else reads.
bool may_know(int fd) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) return false;
    if (::geteuid() == 0 || status.st_uid == ::geteuid()) return true;
    return ::faccessat(AT_FDCWD, fmt::format("/proc/self/fd/{}", fd).c_str(), W_OK, AT_EACCESS) == 0;
}

std::optional<CachedPart> by_mincore(int fd, Bytes offset, Bytes size) {
    if (!may_know(fd)) return std::nullopt;
    const Bytes page = page_size();
    const Bytes begin = offset / page * page;
    const Bytes length = base::round_up(offset + size - begin, page);
    void* const map = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(begin));
    if (map == MAP_FAILED) return std::nullopt;
    std::vector<unsigned char> there(length / page);
    const bool told = ::mincore(map, length, there.data()) == 0;
    ::munmap(map, length);
    if (!told) return std::nullopt;
    const auto pages =
        std::count_if(there.begin(), there.end(), [](unsigned char bits) { return (bits & 1) != 0; });
    return CachedPart{std::min(size, static_cast<Bytes>(pages) * page), false};
}

// One byte in each of at most eight equal parts: more would cost more than they tell. The question has Linux (seen: 6.18)
// read a page that is not there. Where the device is done within the call, the part looks cached and goes through the cache.
std::optional<CachedPart> by_nowait(int fd, Bytes offset, Bytes size) {
    const Bytes samples = std::clamp<Bytes>(size / page_size(), 1, 8);
    Bytes there = 0;
    for (Bytes i = 0; i < samples; ++i) {
        char byte = 0;
        const iovec target{&byte, 1};
        const Bytes at = offset + size / samples * i + size / samples / 2;
        const auto got = ::preadv2(fd, &target, 1, static_cast<off_t>(at), RWF_NOWAIT);
        if (got < 0 && errno != EAGAIN) return std::nullopt;
        if (got > 0) ++there;
    }
    return CachedPart{size / samples * there + (there == samples ? size % samples : 0), false};
}

}  // namespace

std::string_view to_string(CacheProbe probe) {
    switch (probe) {
        case CacheProbe::cachestat:
            return "cachestat";
        case CacheProbe::mincore:
            return "mincore";
        case CacheProbe::nowait:
            return "preadv2";
    }
    return "nothing";
}

CacheProbe best_cache_probe() {
    // The process owns this file, so a refusal cannot be due to missing permission.
    const Fd file(static_cast<int>(::syscall(SYS_memfd_create, "sidestep-probe", 1u /* MFD_CLOEXEC */)));
    if (!file || ::ftruncate(file.get(), static_cast<off_t>(page_size())) != 0) return CacheProbe::nowait;
    for (const CacheProbe probe : {CacheProbe::cachestat, CacheProbe::mincore})
        if (cached_part(probe, file, 0, page_size())) return probe;
    return CacheProbe::nowait;
}

CacheProbe cache_probe_for(const Fd& fd, CacheProbe best) {
    constexpr long overlayfs = 0x794c7630;  // linux/magic.h
    struct statfs facts {};
    const bool overlay = ::fstatfs(fd.get(), &facts) == 0 && static_cast<long>(facts.f_type) == overlayfs;
    return overlay && best == CacheProbe::cachestat ? CacheProbe::mincore : best;
}

std::optional<CacheProbe> next_cache_probe(CacheProbe probe) {
    switch (probe) {
        case CacheProbe::cachestat:
            return CacheProbe::mincore;
        case CacheProbe::mincore:
            return CacheProbe::nowait;
        case CacheProbe::nowait:
            break;
    }
    return std::nullopt;
}

std::optional<CachedPart> cached_part(CacheProbe probe, const Fd& fd, Bytes offset, Bytes size) {
    if (size == 0) return CachedPart{};
    switch (probe) {
        case CacheProbe::cachestat:
            return by_cachestat(fd.get(), offset, size);
        case CacheProbe::mincore:
            return by_mincore(fd.get(), offset, size);
        case CacheProbe::nowait:
            return by_nowait(fd.get(), offset, size);
    }
    return std::nullopt;
}

}  // namespace sidestep::driver
