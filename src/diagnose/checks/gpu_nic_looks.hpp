// What looks for the causes of group GPU-NIC; gpu_nic.cpp has the words.
#pragma once

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

// rdma_devices.cpp: whether there are cards, and whether programs get at them.
Outcome look_rdma_card(const Evidence& evidence);
Outcome look_nic_ports(const Evidence& evidence);
Outcome look_uverbs(const Evidence& evidence);

// gpu_registration.cpp: whether a card can be given GPU memory, and how it writes there.
Outcome look_peermem(const Evidence& evidence);
Outcome look_dma_buf_nic(const Evidence& evidence);
Outcome look_relaxed_ordering(const Evidence& evidence);
Outcome look_gpu_nic_far(const Evidence& evidence);

// rdma_networks.cpp: what the network lets through.
Outcome look_gid_index(const Evidence& evidence);
Outcome look_rail_layout(const Evidence& evidence);
Outcome look_roce_losses(const Evidence& evidence);

}  // namespace sidestep::diagnose
