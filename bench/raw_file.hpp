// Plain file input and output by threads, the yardstick of the library's file copies.
#pragma once

#include <string>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep::bench::raw {

struct FileLoop {
    std::string path;
    Bytes bytes = 0;
    bool write = false;   // pwrite into the file, else pread from it
    bool direct = false;  // around the page cache (O_DIRECT)
    int threads = 1;
    // write: into a file that is made for it. The clock counts setting its space aside, and flushing it where
    // it is direct.
    bool anew = false;
};

// Seconds in which `threads` threads move `loop.bytes` bytes between the file and `memory`, 1 MiB at a time,
// each a share of its own in turn; threads are started before the clock. `memory` is aligned to 4 KiB and the
// bytes are a multiple of that. ErrorCode::unsupported where the file system refuses O_DIRECT.
Result<double> file_seconds(const FileLoop& loop, char* memory);

// The number of threads, of 1, 4 and 16, with which the loop is quickest here; `loop.threads` is not used.
Result<int> best_file_threads(FileLoop loop, char* memory);

}  // namespace sidestep::bench::raw
