#include "backends/cufile/accounts.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace sidestep::backends::cufile {

Counts counts_of(const std::vector<driver::CufileGpuCounts>& all, const std::array<unsigned char, 16>& uuid,
                 bool write) {
    for (const driver::CufileGpuCounts& gpu : all)
        if (gpu.uuid == uuid) return write ? gpu.write : gpu.read;
    return {};
}

std::uint64_t unproven_requests(const Account& account) {
    const std::uint64_t uncounted =
        account.all_requests > account.direct ? account.all_requests - account.direct : 0;
    return std::min(account.requests, std::max(account.posix, uncounted));
}

Bytes unproven_bytes(const Account& account) {
    return std::min(account.bytes, unproven_requests(account) * account.largest);
}

std::optional<std::string> what_a_trial_lacks(const Counts& before, const Counts& after) {
    const std::uint64_t posix = after.posix - before.posix;
    if (posix != 0)
        return fmt::format(
            "cuFile moved a block of it through host memory (compatibility mode), as its counter of "
            "POSIX operations shows, which rose by {}",
            posix);
    if (after.direct == before.direct)
        return std::string("cuFile moved a block of it, and counted it neither as P2PDMA nor as nvidia-fs");
    return std::nullopt;
}

}  // namespace sidestep::backends::cufile
