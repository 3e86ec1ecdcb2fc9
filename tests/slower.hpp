// How much less a test does where a sanitizer looks at every access.
#pragma once

namespace sidestep {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int slower_by = 5;
#else
constexpr int slower_by = 1;
#endif

}  // namespace sidestep
