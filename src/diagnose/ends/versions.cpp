// Versions at both ends: Sidestep, its protocol, the kernel, the driver.
#include <fmt/format.h>

#include "diagnose/ends/ends.hpp"

namespace sidestep::diagnose {
namespace {

Outcome look_at_software(const NodeLook& look) {
    const Both told = both(look, "software");
    if (!told.told()) return not_told(look, "software", "which version it runs");
    Outcome outcome =
        told.same() ? pass(fmt::format("both ends run {}", *told.here))
                    : warn(fmt::format("this machine runs {}, {} {}", *told.here, look.node, *told.there));
    see_both(outcome, look, "software");
    return outcome;
}

Outcome look_at_protocol(const NodeLook& look) {
    const Both told = both(look, "protocols");
    if (!told.told()) return not_told(look, "protocols", "which protocols it speaks");
    Outcome outcome = told.same() ? pass(fmt::format("both ends speak protocols {}", *told.here))
                                  : warn(fmt::format("this machine speaks protocols {}, {} {}", *told.here,
                                                     look.node, *told.there));
    see_both(outcome, look, "protocols");
    return outcome;
}

// Copies go between any two kernels: that they differ explains a difference at most.
Outcome look_at_kernel(const NodeLook& look) {
    const Both told = both(look, "kernel");
    if (!told.told()) return not_told(look, "kernel", "its kernel");
    Outcome outcome = pass(told.same() ? fmt::format("both ends run {}", *told.here)
                                       : fmt::format("here {}, on {} {}: that does no harm", *told.here,
                                                     look.node, *told.there));
    see_both(outcome, look, "kernel");
    return outcome;
}

Outcome look_at_driver(const NodeLook& look) {
    const Both told = both(look, "nvidia_driver");
    const BothNumbers gpus = numbers(look, "gpus");
    if (gpus.told() && (*gpus.here == 0 || *gpus.there == 0))
        return does_not_apply(
            fmt::format("{} no GPU", *gpus.here == 0 ? "this machine has" : look.node + " has"));
    if (!told.told()) return not_told(look, "nvidia_driver", "the version of its NVIDIA driver");
    Outcome outcome = told.same() ? pass(fmt::format("both ends have NVIDIA driver {}", *told.here))
                                  : warn(fmt::format("the NVIDIA driver is {} here and {} on {}", *told.here,
                                                     *told.there, look.node));
    see_both(outcome, look, "nvidia_driver");
    return outcome;
}

}  // namespace

std::vector<EndCheck> version_end_checks() {
    return {{"end-software", "The two machines run different versions of Sidestep",
             "What one of them can do better is not used.", "Install the newer version on both.",
             look_at_software},
            {"end-protocol", "The two machines speak different protocols",
             "They speak the newest that both know, without what came later.",
             "Install the newer version on both.", look_at_protocol},
            {"end-kernel", "Kernels of the two machines", "", "", look_at_kernel},
            {"end-driver", "The two machines have different NVIDIA drivers",
             "GPUs may be reached in a better way at one end than at the other.",
             "Install one version of the driver on both.", look_at_driver}};
}

}  // namespace sidestep::diagnose
