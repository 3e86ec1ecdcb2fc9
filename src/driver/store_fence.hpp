// The order of stores that do not go by the processor's caches.
#pragma once

#include <atomic>

namespace sidestep::driver {

// What was stored before this is on its way before what is stored, or told to another device, after it. Neither mapped device
// memory, which may be write-combining, nor streaming stores are ordered by the release of an atomic.
// Not std::atomic_thread_fence where it can be helped: GCC refuses that under the thread sanitizer.
inline void store_fence() {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace sidestep::driver
