// The order of stores that do not go by the processor's caches.
#pragma once

#include <atomic>

namespace sidestep::driver {

// Stores before this are seen before stores after it, and before what another device is told after it. The release of an atomic
// orders neither stores to mapped device memory, which may be write-combining, nor streaming stores.
// Not std::atomic_thread_fence where it can be helped: GCC refuses that under the thread sanitizer.
inline void store_fence() {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace sidestep::driver
