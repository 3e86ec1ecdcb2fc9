// All of fmt, as a library: compiled header-only with -fkeep-inline-functions, this file defines what the
// other files, compiled without FMT_HEADER_ONLY, expect of one (cmake/dependencies.cmake).
#include <fmt/format.h>
