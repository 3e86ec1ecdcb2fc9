// How bytes went to or from storage.
#pragma once

#include <sidestep/units.hpp>

namespace sidestep {

// A byte that one copy both read and wrote counts twice.
struct StorageBytes {
    Bytes gpu_direct = 0;  // between storage and device memory, no byte in host memory
    Bytes o_direct = 0;    // between storage and host memory, around the page cache
    Bytes page_cache = 0;  // through the page cache
    // Of page_cache: bytes that it did not hold when they were asked for, so that a device was read. 0 for files of
    // another machine, and where the kernel does not tell.
    Bytes misses = 0;

    Bytes total() const { return gpu_direct + o_direct + page_cache; }
    // Of a read: bytes that a device delivered.
    Bytes device() const { return gpu_direct + o_direct + misses; }
    StorageBytes& operator+=(const StorageBytes& other) {
        gpu_direct += other.gpu_direct;
        o_direct += other.o_direct;
        page_cache += other.page_cache;
        misses += other.misses;
        return *this;
    }
};

}  // namespace sidestep
