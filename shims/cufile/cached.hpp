// Reading what the page cache holds, on the calling thread.
#pragma once

#include <sidestep/buffer.hpp>
#include "shims/cufile/files.hpp"

namespace sidestep::cufile {

struct CachedRead {
    Bytes bytes = 0;     // from the beginning on
    bool ended = false;  // the file ends there
    Refusal refused;     // of the GPU, or of who asks for the file's size
};

// Reads the file into `memory` from `offset` on where the page cache holds all of it, and nothing where it does not. What leaves
// the cache meanwhile is left, with all behind it. Memory of a GPU is reached through two
// slots of this thread, in turns, so that reading and copying overlap. Threads do so beside each other.
CachedRead read_cached(const File& file, const Buffer& memory, Bytes offset);

}  // namespace sidestep::cufile
