#include "diagnose/check.hpp"

namespace sidestep::diagnose {

namespace {

Outcome outcome(Verdict verdict, std::string summary) {
    Outcome made;
    made.verdict = verdict;
    made.summary = std::move(summary);
    return made;
}

}  // namespace

Outcome pass(std::string summary) {
    return outcome(Verdict::pass, std::move(summary));
}
Outcome warn(std::string summary) {
    return outcome(Verdict::warn, std::move(summary));
}
Outcome fail(std::string summary) {
    return outcome(Verdict::fail, std::move(summary));
}
Outcome unknown(std::string summary) {
    return outcome(Verdict::unknown, std::move(summary));
}

Outcome does_not_apply(std::string summary) {
    Outcome made = outcome(Verdict::pass, std::move(summary));
    made.applies = false;
    return made;
}

std::vector<Check> all_checks() {
    std::vector<Check> all;
    for (const auto group : {gpu_gpu_checks, gpu_nic_checks, gpu_storage_checks, hardware_checks, host_checks,
                             container_checks, version_checks}) {
        const std::vector<Check> checks = group();
        all.insert(all.end(), checks.begin(), checks.end());
    }
    return all;
}

}  // namespace sidestep::diagnose
