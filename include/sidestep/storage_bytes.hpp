// How bytes went to or from storage.
#pragma once

#include <sidestep/units.hpp>

namespace sidestep {

// A byte that one copy both read and wrote counts twice.
struct StorageBytes {
    Bytes gpu_direct = 0;  // between storage and device memory, no byte in host memory
    Bytes o_direct = 0;    // between storage and host memory, around the page cache
    Bytes page_cache = 0;  // through the page cache

    Bytes total() const { return gpu_direct + o_direct + page_cache; }
    StorageBytes& operator+=(const StorageBytes& other) {
        gpu_direct += other.gpu_direct;
        o_direct += other.o_direct;
        page_cache += other.page_cache;
        return *this;
    }
};

}  // namespace sidestep
