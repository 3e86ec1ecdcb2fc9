// What comes first in a diagnosis, what is folded under it, and the answer for the machine as a whole.
#include <gtest/gtest.h>

#include "diagnose/causes.hpp"
#include "diagnose/diagnose.hpp"
#include "tests/unit/diagnose/whole_machines.hpp"

namespace sidestep::diagnose {
namespace {

Finding finding(const char* id, Verdict verdict, std::optional<double> cost = {}) {
    Finding made;
    made.id = id;
    made.verdict = verdict;
    made.cost_gb_per_s = cost;
    made.summary = std::string("what ") + id + " says";
    return made;
}

// "id" or "id<cause", in order.
std::string order(std::vector<Finding> findings) {
    Diagnosis diagnosis;
    diagnosis.findings = std::move(findings);
    put_causes_first(diagnosis);
    std::string text;
    for (const Finding& one : diagnosis.findings)
        text += (text.empty() ? "" : " ") + one.id + (one.because.empty() ? "" : "<" + one.because);
    return text;
}

TEST(Causes, WorstAndDearestFirst) {
    Finding apart = finding("apart", Verdict::pass);
    apart.applies = false;
    EXPECT_EQ(order({apart, finding("well", Verdict::pass), finding("unseen", Verdict::unknown),
                     finding("cheap", Verdict::warn, 2), finding("free", Verdict::warn),
                     finding("dear", Verdict::warn, 50), finding("broken", Verdict::fail)}),
              "broken dear cheap free unseen well apart");
}

TEST(Causes, WhatTheyExplainFollowsThem) {
    const struct {
        std::vector<Finding> findings;
        const char* order;
    } cases[] = {
        {{finding("nvlinks-inactive", Verdict::unknown), finding("mig-on", Verdict::unknown),
          finding("bar1-small", Verdict::warn, 9), finding("driver-mismatch", Verdict::fail)},
         "driver-mismatch nvlinks-inactive<driver-mismatch mig-on<driver-mismatch bar1-small"},
        // A cause without a figure that explains others is dearer than a figure.
        {{finding("no-uverbs", Verdict::fail, 48), finding("fabric-manager", Verdict::fail),
          finding("p2p-refused", Verdict::warn, 300)},
         "fabric-manager p2p-refused<fabric-manager no-uverbs"},
        // Of a chain the first is the cause of all.
        {{finding("p2p-refused", Verdict::warn), finding("fabric-manager", Verdict::fail),
          finding("fabric-manager-version", Verdict::fail)},
         "fabric-manager-version fabric-manager<fabric-manager-version p2p-refused<fabric-manager-version"},
        // What is only unseen explains nothing that is known.
        {{finding("p2p-refused", Verdict::warn), finding("fabric-manager", Verdict::unknown)},
         "p2p-refused fabric-manager"},
        {{finding("mig-on", Verdict::unknown), finding("driver-mismatch", Verdict::unknown)},
         "mig-on driver-mismatch"},
        // A check that cannot be made is not one that failed.
        {{finding("pcie-errors", Verdict::unknown), finding("pcie-trained-down", Verdict::warn)},
         "pcie-trained-down pcie-errors"},
        {{finding("pcie-errors", Verdict::warn), finding("pcie-trained-down", Verdict::warn, 9)},
         "pcie-trained-down pcie-errors<pcie-trained-down"},
        // What is content explains nothing.
        {{finding("p2p-refused", Verdict::warn), finding("mig-on", Verdict::pass)}, "p2p-refused mig-on"},
    };
    for (const auto& one : cases) EXPECT_EQ(order(one.findings), one.order);
}

TEST(Causes, WithoutADriverTheDriverIsFirst) {
    HgxServer machine;
    machine.has_nvml = false;
    machine.remove("/proc/driver/nvidia");
    machine.remove("/sys/module/nvidia");
    const Diagnosis diagnosis = examine_all(machine.evidence());
    EXPECT_EQ(diagnosis.health(), Health::no_driver);
    EXPECT_EQ(diagnosis.findings.front().id, "driver-mismatch");
    const std::string text = diagnosis.to_string();
    EXPECT_LT(text.find("no NVIDIA driver is loaded"), text.find("nvlinks-inactive")) << text;
    EXPECT_EQ(text.find("Make NVML work"), std::string::npos) << text;
}

TEST(Causes, AMachineWithoutAGpuIsAVerdictOfItsOwn) {
    Laptop machine;
    const Diagnosis diagnosis = examine_all(machine.evidence());
    EXPECT_EQ(diagnosis.health(), Health::no_gpu) << diagnosis.to_string();
    EXPECT_GT(diagnosis.not_applicable(), 20);
    EXPECT_LT(diagnosis.count(Verdict::pass), 20);
    EXPECT_NE(diagnosis.to_string().find("no GPU"), std::string::npos);
}

}  // namespace
}  // namespace sidestep::diagnose
