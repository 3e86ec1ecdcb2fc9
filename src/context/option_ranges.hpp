// What options may be: one table, looked at before anything is begun, for every way into the library.
#pragma once

#include <cstdint>
#include <string_view>

#include <sidestep/collective.hpp>
#include <sidestep/load.hpp>
#include <sidestep/options.hpp>
#include <sidestep/save.hpp>

namespace sidestep::context {

// ErrorCode::invalid_argument names the first option that is out of its range, its value and the range.
Result<void> check(const CopyOptions& options);
Result<void> check(const LoadOptions& options);
Result<void> check(const SaveOptions& options);
Result<void> check(const GroupOptions& options);

// The same for one value, before it goes into a member that may not hold it.
Result<void> check(std::string_view option, std::uint64_t value);

// What loads and saves ask for as copies do: no base of theirs, or callers could not name a member of it where they
// write LoadOptions{.verify = true}.
template <typename Options>
CopyOptions copy_options(const Options& options) {
    CopyOptions copy;
    if constexpr (requires { options.sync_file; }) copy.sync_file = options.sync_file;
    copy.verify = options.verify;
    copy.page_cache = options.page_cache;
    copy.max_staging = options.max_staging;
    copy.chunk = options.chunk;
    copy.deadline = options.deadline;
    copy.stall_limit = options.stall_limit;
    return copy;
}

}  // namespace sidestep::context
