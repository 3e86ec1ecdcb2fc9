#include "transfer/activity.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace sidestep::transfer {

// For what is about to end anyway.
constexpr std::chrono::milliseconds grace(30);

Error Activity::late(std::chrono::milliseconds deadline, const char* done, std::string where) {
    late_ = true;
    return {ErrorCode::timed_out,
            fmt::format("the deadline of {} ms passed with {} of {} bytes {}", deadline.count(), bytes_done(),
                        bytes_total(), done),
            std::move(where), "raise the deadline"};
}

Error Activity::stalled(std::chrono::milliseconds limit, const char* done, std::string where) const {
    return {ErrorCode::timed_out,
            fmt::format("nothing moved for {} ms, with {} of {} bytes {}", limit.count(), bytes_done(),
                        bytes_total(), done),
            std::move(where), "a device or file system hangs: see the kernel's log"};
}

std::chrono::milliseconds Activity::patience(std::chrono::milliseconds limit) const {
    return late_ ? std::min(limit, grace) : limit;
}

}  // namespace sidestep::transfer
