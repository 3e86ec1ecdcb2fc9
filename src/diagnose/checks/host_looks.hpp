// What looks for the causes of group host; host.cpp has the words.
#pragma once

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

Outcome look_iommu(const Evidence& evidence);
Outcome look_bar1(const Evidence& evidence);
Outcome look_numa(const Evidence& evidence);
Outcome look_pcie_links(const Evidence& evidence);
Outcome look_memlock(const Evidence& evidence);
Outcome look_environment(const Evidence& evidence);
Outcome look_ipc_limits(const Evidence& evidence);

// Whether an RDMA card is there, in /sys or in what libibverbs lists.
bool has_rdma(const Evidence& evidence);

}  // namespace sidestep::diagnose
