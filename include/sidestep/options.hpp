// What a caller may ask of a copy.
#pragma once

#include <chrono>
#include <string_view>

#include <sidestep/api.h>
#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep {

enum class Require {
    any,     // take the best path there is; staging where nothing better exists, and say so
    direct,  // one hop, or fail with ErrorCode::path_unavailable and the reason
    host,    // through host memory even where a direct path exists: to compare the two
};

enum class Prefer {
    automatic,    // whatever the prices say
    copy_engine,  // the GPU's DMA engines
    kernel,       // loads and stores by a kernel, over peer-mapped memory
};

// What a copy does with the kernel's page cache of the files it touches.
enum class PageCache {
    automatic,  // read what it holds from it and the rest around it (O_DIRECT); write through it, except where
                // the file is flushed to its device anyway (CopyOptions::sync_file)
    use,        // through it
    bypass,     // around it, whatever it holds. Where the file system refuses, the copy goes through it and
                // the Receipt's notes say so; with Require::direct it fails
};

// How far options go. Every option is looked at before anything is begun: ErrorCode::invalid_argument names one
// that is out of its range, its value and the range.
inline constexpr int most_lanes = 1024;
inline constexpr Bytes largest_chunk = Bytes{1} << 40;
inline constexpr std::chrono::milliseconds longest_limit = std::chrono::hours(365 * 24);  // also of groups

struct CopyOptions {
    Require require = Require::any;
    Prefer prefer = Prefer::automatic;

    // Upper bound of the lanes that carry the copy at once: 1 for the best single path, 0 for as many as make
    // it quicker by the planner's prices. At most most_lanes.
    int lanes = 0;

    // After the copy, read both ends, hash them and compare: ErrorCode::mismatch with the offset of the
    // first differing block. Reads every byte twice more, through up to 64 MiB of staging memory, half of
    // max_staging at most.
    bool verify = false;

    // The copy fails with ErrorCode::timed_out when it takes longer. Zero: no limit on the whole. At most
    // longest_limit.
    std::chrono::milliseconds deadline{0};
    // The copy fails with ErrorCode::timed_out when no byte moves for this long. Zero: wait for ever. At most
    // longest_limit.
    std::chrono::milliseconds stall_limit{60'000};

    // Upper bound of the staging memory this copy may hold at once, over all lanes and hops. Any value; a path
    // with less than 4 KiB for each of its stops is refused.
    Bytes max_staging = Bytes{256} << 20;
    // Bytes moved at a time, on a staged path within max_staging; 0 lets the library choose. Rounded up to
    // 4 KiB. At most largest_chunk.
    Bytes chunk = 0;

    // A written file is flushed to its device before it appears under its name.
    bool sync_file = false;
    PageCache page_cache = PageCache::automatic;
};

// For those who read options from text, or from another language: the error for a value that the option's type
// cannot hold, in the words in which the library refuses one that is out of range. `option` is the name of a
// member of any options; the hint is empty where it has no range.
SIDESTEP_API Error refused_option(std::string_view option, std::string_view value);

}  // namespace sidestep
