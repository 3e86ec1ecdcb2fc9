// How much of a file the kernel's page cache holds.
#pragma once

#include <optional>
#include <string_view>

#include <sidestep/units.hpp>
#include "driver/fd.hpp"

namespace sidestep::driver {

// Ways to ask, best first.
enum class CacheProbe {
    cachestat,  // cachestat(2), Linux 6.5: counts pages, also dirty ones
    mincore,  // mincore(2) over a map of the range: counts pages; tells only who may write the file the truth
    nowait,   // preadv2(2) with RWF_NOWAIT: single bytes here and there, which may make the kernel read ahead
};

// "cachestat", "mincore", "preadv2"
std::string_view to_string(CacheProbe probe);

// The best way that this kernel, and whoever filters system calls, lets the process use.
CacheProbe best_cache_probe();

// The best way to ask about one file, given what the kernel offers. Files of an overlay (containers) have
// their pages with the file below: cachestat counts none there.
CacheProbe cache_probe_for(const Fd& fd, CacheProbe best);

// What to try where `probe` cannot tell.
std::optional<CacheProbe> next_cache_probe(CacheProbe probe);

// What the cache holds of a range.
struct CachedPart {
    Bytes bytes = 0;     // at most the range; rounded to whole pages
    bool dirty = false;  // some of it was not written to the device yet; cachestat only
};

// Asks about `size` bytes from `offset` on. Nothing where it cannot be told: the file system does not answer,
// or the process may not know. Does not wait for a device. Any thread.
std::optional<CachedPart> cached_part(CacheProbe probe, const Fd& fd, Bytes offset, Bytes size);

}  // namespace sidestep::driver
