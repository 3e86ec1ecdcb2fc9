#include "context/option_ranges.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep {
namespace {

// Every option goes from 0 to a largest value.
struct Range {
    std::string_view option;
    std::uint64_t largest;
    std::string_view zero;  // what 0 means
    std::string_view unit;
};

constexpr std::uint64_t longest = longest_limit / std::chrono::milliseconds(1);
constexpr std::uint64_t any = std::numeric_limits<std::uint64_t>::max();

constexpr Range ranges[] = {
    {"require", static_cast<std::uint64_t>(Require::host), "any", ""},
    {"prefer", static_cast<std::uint64_t>(Prefer::kernel), "automatic", ""},
    {"page_cache", static_cast<std::uint64_t>(PageCache::bypass), "automatic", ""},
    {"layout", static_cast<std::uint64_t>(Layout::by_axis), "replicate", ""},
    {"policy", static_cast<std::uint64_t>(GroupPolicy::zero_sm), "automatic", ""},
    {"lanes", most_lanes, "as many as make it quicker", ""},
    {"chunk", largest_chunk, "the library chooses", " bytes"},
    // Upper bounds: one that nothing reaches is none, so that there is nothing to refuse.
    {"max_staging", any, "none", " bytes"},
    {"shard_bytes", any, "one file", " bytes"},
    {"relay_memory", any, "none", " bytes"},
    {"max_blocks", std::numeric_limits<int>::max(), "any number", ""},
    {"deadline", longest, "none", " ms"},
    {"stall_limit", longest, "none", " ms"},
    {"timeout", longest, "none", " ms"},
    {"join_timeout", longest, "none", " ms"},
};

// Found by the compiler: a copy of few bytes does not wait for it.
consteval const Range& range_of(std::string_view option) {
    for (const Range& range : ranges)
        if (range.option == option) return range;
    throw "the table has no such option";
}

template <typename Value>
Result<void> in_range(const Range& range, Value value) {
    if (std::cmp_greater_equal(value, 0) && std::cmp_less_equal(value, range.largest)) return {};
    return refused_option(range.option, fmt::format("{}{}", value, range.unit));
}

template <typename Enum>
Result<void> known(const Range& range, Enum value) {
    return in_range(range, static_cast<int>(value));
}

Result<void> in_range(const Range& range, std::chrono::milliseconds limit) {
    return in_range(range, limit.count());
}

const Range* find_range(std::string_view option) {
    const auto* const found = std::find_if(std::begin(ranges), std::end(ranges),
                                           [&](const Range& range) { return range.option == option; });
    return found != std::end(ranges) ? found : nullptr;
}

}  // namespace

Error refused_option(std::string_view option, std::string_view value) {
    Error error{ErrorCode::invalid_argument, fmt::format("{} is {}", option, value), "options", {}};
    if (const Range* const range = find_range(option))
        error.hint = fmt::format("it may be 0 ({}) to {}{}", range->zero, range->largest, range->unit);
    return error;
}

namespace context {

Result<void> check(const CopyOptions& options) {
    SIDESTEP_CHECK(known(range_of("require"), options.require));
    SIDESTEP_CHECK(known(range_of("prefer"), options.prefer));
    SIDESTEP_CHECK(known(range_of("page_cache"), options.page_cache));
    SIDESTEP_CHECK(in_range(range_of("lanes"), options.lanes));
    SIDESTEP_CHECK(in_range(range_of("deadline"), options.deadline));
    SIDESTEP_CHECK(in_range(range_of("stall_limit"), options.stall_limit));
    return in_range(range_of("chunk"), options.chunk);
}

Result<void> check(const LoadOptions& options) {
    SIDESTEP_CHECK(known(range_of("layout"), options.layout));
    return check(copy_options(options));
}

Result<void> check(const SaveOptions& options) {
    return check(copy_options(options));
}

Result<void> check(const GroupOptions& options) {
    SIDESTEP_CHECK(known(range_of("policy"), options.policy));
    SIDESTEP_CHECK(in_range(range_of("timeout"), options.timeout));
    SIDESTEP_CHECK(in_range(range_of("join_timeout"), options.join_timeout.value_or(options.timeout)));
    return in_range(range_of("max_blocks"), options.max_blocks);
}

Result<void> check(std::string_view option, std::uint64_t value) {
    const Range* const range = find_range(option);
    return range != nullptr ? in_range(*range, value) : Result<void>();
}

}  // namespace context
}  // namespace sidestep
