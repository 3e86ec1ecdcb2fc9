// The version of the library that is linked in.
#pragma once

#include <sidestep/api.h>

namespace sidestep {

// "0.1.0". Semantic versioning; the C ABI's version is in the names of its symbols.
SIDESTEP_API const char* version();

}  // namespace sidestep
