#include "diagnose/causes.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

namespace sidestep::diagnose {

namespace {

// A finding that is there because of another one, where both are not content.
struct Consequence {
    std::string_view cause;
    std::string_view id;
    bool unseen;  // only where nothing more than "cannot be seen" is said of it
};
constexpr std::array consequences = {
    // Without a driver NVML and CUDA answer nothing.
    Consequence{"driver-mismatch", "geforce-no-p2p", true},
    Consequence{"driver-mismatch", "p2p-chipset", true},
    Consequence{"driver-mismatch", "p2p-refused", true},
    Consequence{"driver-mismatch", "nvlinks-inactive", true},
    Consequence{"driver-mismatch", "mig-on", true},
    Consequence{"driver-mismatch", "confidential-computing", true},
    Consequence{"driver-mismatch", "fabric-manager", true},
    Consequence{"driver-mismatch", "fabric-manager-version", false},
    Consequence{"driver-mismatch", "bar1-small", true},
    Consequence{"driver-mismatch", "cuda-driver-old", true},
    Consequence{"driver-mismatch", "closed-driver", true},
    Consequence{"driver-mismatch", "dma-buf-gpu", true},
    Consequence{"driver-mismatch", "peermem-missing", false},
    Consequence{"driver-mismatch", "nvidia-fs", false},
    Consequence{"driver-mismatch", "p2pdma-mode", false},
    Consequence{"driver-mismatch", "p2p-wrong-data", true},
    Consequence{"driver-mismatch", "p2p-slow", true},
    Consequence{"driver-mismatch", "acs-redirect", true},
    Consequence{"driver-mismatch", "vm-hides-switches", false},
    Consequence{"driver-mismatch", "xid", true},
    Consequence{"driver-mismatch", "nvlink-errors", true},
    Consequence{"driver-mismatch", "gpu-memory-errors", true},
    Consequence{"driver-mismatch", "throttling", true},
    Consequence{"driver-mismatch", "pcie-errors", true},
    // NVLink is not used before the NVSwitches are ready.
    Consequence{"fabric-manager-version", "fabric-manager", false},
    Consequence{"fabric-manager", "p2p-refused", false},
    Consequence{"fabric-manager", "nvlinks-inactive", false},
    // These take peer access away.
    Consequence{"mig-on", "p2p-refused", false},
    Consequence{"confidential-computing", "p2p-refused", false},
    // What makes a direct path slow or wrong.
    Consequence{"acs-redirect", "p2p-slow", false},
    Consequence{"pcie-trained-down", "p2p-slow", false},
    // A device that differs by what has a name of its own.
    Consequence{"gpu-lost", "xid", false},
    Consequence{"pcie-trained-down", "odd-one-out", false},
    Consequence{"pcie-trained-down", "pcie-errors", false},
    Consequence{"nvlinks-inactive", "odd-one-out", false},
    Consequence{"nvlinks-inactive", "nvlink-errors", false},
    Consequence{"nic-down", "odd-one-out", false},
    Consequence{"mig-on", "odd-one-out", false},
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
        if (known.unseen && found->second->verdict != Verdict::unknown) continue;
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
