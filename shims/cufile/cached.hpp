// Reading what the page cache holds, on the calling thread.
#pragma once

#include <sidestep/buffer.hpp>
#include "shims/cufile/files.hpp"

namespace sidestep::cufile {

struct CachedRead {
    Bytes bytes = 0;     // from the beginning on
    bool ended = false;  // the file ends there
    Refusal refused;     // of the GPU; what cannot be read without waiting is only left
};

// Reads the file into `memory` from `offset` on, as far as no device has to be waited for. Memory of a GPU is reached through two
// slots of this thread, in turns, so that reading and copying overlap. Threads do so beside each other.
CachedRead read_cached(const File& file, const Buffer& memory, Bytes offset);

}  // namespace sidestep::cufile
