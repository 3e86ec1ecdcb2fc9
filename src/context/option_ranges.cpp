#include "context/option_ranges.hpp"

#include <algorithm>
#include <concepts>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <string>
#include <type_traits>
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

// An option and what it was set to.
struct Setting {
    template <std::integral Number>
    Setting(const Range& option, Number number)
        : range(option), value(static_cast<std::uint64_t>(number)), below_zero(std::cmp_less(number, 0)) {}
    template <typename Enum>
    requires std::is_enum_v<Enum> Setting(const Range& option, Enum number)
        : Setting(option, static_cast<int>(number)) {}
    Setting(const Range& option, std::chrono::milliseconds limit) : Setting(option, limit.count()) {}

    bool fits() const { return !below_zero && value <= range.largest; }
    std::string text() const {
        return below_zero ? fmt::format("{}{}", static_cast<std::int64_t>(value), range.unit)
                          : fmt::format("{}{}", value, range.unit);
    }

    const Range& range;
    std::uint64_t value;
    bool below_zero;
};

Result<void> check_all(std::initializer_list<Setting> settings) {
    for (const Setting& setting : settings)
        if (!setting.fits()) return refused_option(setting.range.option, setting.text());
    return {};
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
    return check_all({{range_of("require"), options.require},
                      {range_of("prefer"), options.prefer},
                      {range_of("page_cache"), options.page_cache},
                      {range_of("lanes"), options.lanes},
                      {range_of("deadline"), options.deadline},
                      {range_of("stall_limit"), options.stall_limit},
                      {range_of("chunk"), options.chunk}});
}

Result<void> check(const LoadOptions& options) {
    SIDESTEP_CHECK(check_all({{range_of("layout"), options.layout}}));
    return check(copy_options(options));
}

Result<void> check(const SaveOptions& options) {
    return check(copy_options(options));
}

Result<void> check(const GroupOptions& options) {
    return check_all({{range_of("policy"), options.policy},
                      {range_of("timeout"), options.timeout},
                      {range_of("join_timeout"), options.join_timeout.value_or(options.timeout)},
                      {range_of("max_blocks"), options.max_blocks}});
}

Result<void> check(std::string_view option, std::uint64_t value) {
    const Range* const range = find_range(option);
    return range != nullptr ? check_all({{*range, value}}) : Result<void>();
}

}  // namespace context
}  // namespace sidestep
