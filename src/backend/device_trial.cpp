#include "backend/device_trial.hpp"

#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"

namespace sidestep::backend {
namespace {

Error other_bytes(std::string_view card, std::string_view what, const Place& gpu) {
    return {ErrorCode::mismatch,
            fmt::format("{} {} {} other bytes than those that were sent", card, what, gpu.to_string()),
            "network",
            "see whether access control of PCIe switches is off, and the drivers are of one version"};
}

}  // namespace

Result<void> try_device(const DeviceTrial& trial, DmaBufs& gpus, const Buffer& scratch) {
    std::vector<char> there(device_trial_bytes);
    const auto same = [&] { return std::memcmp(there.data(), trial.host, device_trial_bytes) == 0; };
    trial.make_unknown(trial.host);
    SIDESTEP_CHECK(trial.carry_in());
    SIDESTEP_CHECK(gpus.see_writes(scratch.place()));
    SIDESTEP_CHECK(gpus.copy_out(scratch, there.data()));
    if (!same()) return other_bytes(trial.card, "brought to", scratch.place());
    trial.make_unknown(there.data());
    SIDESTEP_CHECK(gpus.copy_in(scratch, there.data()));
    SIDESTEP_CHECK(trial.carry_back());
    if (!same()) return other_bytes(trial.card, "brought from", scratch.place());
    return {};
}

Result<void> DeviceTrials::once(int way, const Place& gpu, std::string_view who,
                                const std::function<Result<void>()>& attempt, Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    const auto [found, first] = done_.try_emplace({way, gpu});
    Outcome& known = found->second;
    if (!first && now < known.holds_until) return known.result;
    auto done = attempt();
    if (done || done.error().code == ErrorCode::mismatch)
        known.holds_until = Clock::time_point::max();
    else if (done.error().code == ErrorCode::timed_out)
        known.holds_until = now + silence_holds_for;
    const bool said = !first && !done && known.result.error().message == done.error().message;
    if (!done && !said)
        base::log(base::LogLevel::warn, fmt::format("memory of {} is not trusted to {}: {}", gpu.to_string(),
                                                    who, done.error().to_string()));
    return known.result = std::move(done);
}

}  // namespace sidestep::backend
