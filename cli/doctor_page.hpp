// One page of HTML about a machine: what the doctor found, the drawing, and what a probe measured.
#pragma once

#include <optional>
#include <string>

#include <sidestep/doctor.hpp>
#include <sidestep/probe_report.hpp>
#include <sidestep/topology.hpp>

namespace sidestep::cli {

// Stands alone: nothing is loaded from anywhere, and there are no scripts.
std::string doctor_page(const Diagnosis& diagnosis, const Topology& topology,
                        const std::optional<ProbeReport>& probe);

}  // namespace sidestep::cli
