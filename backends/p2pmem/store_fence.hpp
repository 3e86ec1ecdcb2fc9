// Stores to mapped device memory, and a device that reads it next.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <atomic>
#endif

namespace sidestep::backends::p2pmem {

// Such a mapping may be write-combining: what was stored before this is on its way to the device before what
// is stored, or told to another device, after it. Not std::atomic_thread_fence where it can be helped: GCC
// refuses that under the thread sanitizer.
inline void store_fence() {
#if defined(__x86_64__)
    _mm_sfence();
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace sidestep::backends::p2pmem
