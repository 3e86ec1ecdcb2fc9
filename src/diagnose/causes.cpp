#include "diagnose/causes.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

namespace sidestep::diagnose {

namespace {

// What a consequence is: a check that cannot be made, something that is wrong, or either.
enum class As { unseen, wrong, either };

// A finding that is there because of another one, where both are not content.
struct Consequence {
    std::string_view cause;
    std::string_view id;
    As as;
};
constexpr std::array consequences = {
    // Without a driver NVML and CUDA answer nothing.
    Consequence{"driver-mismatch", "geforce-no-p2p", As::unseen},
    Consequence{"driver-mismatch", "p2p-chipset", As::unseen},
    Consequence{"driver-mismatch", "p2p-refused", As::unseen},
    Consequence{"driver-mismatch", "nvlinks-inactive", As::unseen},
    Consequence{"driver-mismatch", "mig-on", As::unseen},
    Consequence{"driver-mismatch", "confidential-computing", As::unseen},
    Consequence{"driver-mismatch", "fabric-manager", As::unseen},
    Consequence{"driver-mismatch", "fabric-manager-version", As::either},
    Consequence{"driver-mismatch", "bar1-small", As::unseen},
    Consequence{"driver-mismatch", "cuda-driver-old", As::unseen},
    Consequence{"driver-mismatch", "closed-driver", As::unseen},
    Consequence{"driver-mismatch", "dma-buf-gpu", As::unseen},
    Consequence{"driver-mismatch", "peermem-missing", As::either},
    Consequence{"driver-mismatch", "nvidia-fs", As::either},
    Consequence{"driver-mismatch", "p2pdma-mode", As::either},
    Consequence{"driver-mismatch", "p2p-wrong-data", As::unseen},
    Consequence{"driver-mismatch", "p2p-slow", As::unseen},
    Consequence{"driver-mismatch", "acs-redirect", As::unseen},
    Consequence{"driver-mismatch", "vm-hides-switches", As::either},
    Consequence{"driver-mismatch", "xid", As::unseen},
    Consequence{"driver-mismatch", "nvlink-errors", As::unseen},
    Consequence{"driver-mismatch", "gpu-memory-errors", As::unseen},
    Consequence{"driver-mismatch", "throttling", As::unseen},
    Consequence{"driver-mismatch", "pcie-errors", As::unseen},
    // NVLink is not used before the NVSwitches are ready.
    Consequence{"fabric-manager-version", "fabric-manager", As::wrong},
    Consequence{"fabric-manager", "p2p-refused", As::wrong},
    Consequence{"fabric-manager", "nvlinks-inactive", As::wrong},
    // These take peer access away.
    Consequence{"mig-on", "p2p-refused", As::wrong},
    Consequence{"confidential-computing", "p2p-refused", As::wrong},
    // What makes a direct path slow or wrong.
    Consequence{"acs-redirect", "p2p-slow", As::wrong},
    Consequence{"pcie-trained-down", "p2p-slow", As::wrong},
    // A device that differs by what has a name of its own.
    Consequence{"gpu-lost", "xid", As::wrong},
    Consequence{"pcie-trained-down", "odd-one-out", As::wrong},
    Consequence{"pcie-trained-down", "pcie-errors", As::wrong},
    Consequence{"nvlinks-inactive", "odd-one-out", As::wrong},
    Consequence{"nvlinks-inactive", "nvlink-errors", As::wrong},
    Consequence{"nic-down", "odd-one-out", As::wrong},
    Consequence{"mig-on", "odd-one-out", As::wrong},
};

constexpr double everything = 1e9;  // GB/s, more than any machine has

bool content(const Finding& finding) {
    return finding.verdict == Verdict::pass;
}

int severity(const Finding& finding) {
    switch (finding.verdict) {
        case Verdict::fail:
            return 0;
        case Verdict::warn:
            return 1;
        case Verdict::unknown:
            return 2;
        case Verdict::pass:
            break;
    }
    return finding.applies ? 3 : 4;
}

void name_causes(std::vector<Finding>& findings) {
    std::map<std::string_view, Finding*> open;
    for (Finding& finding : findings)
        if (!content(finding)) open.emplace(finding.id, &finding);
    for (const Consequence& known : consequences) {
        const auto cause = open.find(known.cause);
        const auto found = open.find(known.id);
        if (cause == open.end() || found == open.end() || !found->second->because.empty()) continue;
        // What is only unseen explains nothing.
        if (cause->second->verdict == Verdict::unknown) continue;
        const As as = found->second->verdict == Verdict::unknown ? As::unseen : As::wrong;
        if (known.as != As::either && known.as != as) continue;
        // A consequence of a consequence is one of the first cause.
        const std::string& first = cause->second->because;
        found->second->because = first.empty() ? cause->second->id : first;
    }
}

}  // namespace

void put_causes_first(Diagnosis& diagnosis) {
    std::vector<Finding>& findings = diagnosis.findings;
    name_causes(findings);
    std::map<std::string, double> cost;  // of a cause: its own, or of the dearest thing that it explains
    for (const Finding& finding : findings) {
        double& most = cost[finding.because.empty() ? finding.id : finding.because];
        most = std::max(most, finding.cost_gb_per_s.value_or(0));
    }
    // What explains others, and has no figure, takes more than a figure can say: all of a driver, all of NVLink.
    for (const Finding& finding : findings)
        if (!finding.because.empty() && cost[finding.because] == 0) cost[finding.because] = everything;
    const auto before = [&](const Finding& a, const Finding& b) {
        const auto key = [&](const Finding& finding) {
            return std::pair(severity(finding), -cost[finding.id]);
        };
        return key(a) < key(b);
    };
    std::stable_sort(findings.begin(), findings.end(), before);
    std::vector<Finding> ordered;
    ordered.reserve(findings.size());
    for (const Finding& finding : findings) {
        if (!finding.because.empty()) continue;
        ordered.push_back(finding);
        for (const Finding& other : findings)
            if (other.because == finding.id) ordered.push_back(other);
    }
    findings = std::move(ordered);
}

}  // namespace sidestep::diagnose
