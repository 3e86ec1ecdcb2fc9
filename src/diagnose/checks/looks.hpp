// What looks for the causes, one function a check, in the order of the tables of check.hpp, which have the words.
#pragma once

#include "diagnose/check.hpp"

namespace sidestep::diagnose {

Outcome look_acs_redirect(const Evidence& evidence);

// Why the driver refuses peer access.
Outcome look_geforce(const Evidence& evidence);
Outcome look_chipset(const Evidence& evidence);
Outcome look_refused(const Evidence& evidence);
Outcome look_mig(const Evidence& evidence);
Outcome look_confidential(const Evidence& evidence);

// What a trial of every pair found.
Outcome look_wrong_data(const Evidence& evidence);
Outcome look_slow_peers(const Evidence& evidence);

// NVLink and what joins it.
Outcome look_fabric(const Evidence& evidence);
Outcome look_nvlinks(const Evidence& evidence);
Outcome look_imex(const Evidence& evidence);

Outcome look_vmm_ipc(const Evidence& evidence);

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

// direct_storage.cpp: what cuFile's direct ways need.
Outcome look_nvme(const Evidence& evidence);
Outcome look_nvidia_fs(const Evidence& evidence);
Outcome look_p2pdma_mode(const Evidence& evidence);
Outcome look_nvme_far(const Evidence& evidence);

// file_systems.cpp: what lies between a file and its drive.
Outcome look_file_system(const Evidence& evidence);
Outcome look_udev(const Evidence& evidence);

// Hardware that fails.
Outcome look_lost_gpus(const Evidence& evidence);
Outcome look_xid(const Evidence& evidence);
Outcome look_expectation(const Evidence& evidence);
Outcome look_odd_devices(const Evidence& evidence);
Outcome look_pcie_errors(const Evidence& evidence);
Outcome look_nvlink_errors(const Evidence& evidence);
Outcome look_gpu_memory(const Evidence& evidence);
Outcome look_throttling(const Evidence& evidence);

// What the host does to every path.
Outcome look_iommu(const Evidence& evidence);
Outcome look_bar1(const Evidence& evidence);
Outcome look_numa(const Evidence& evidence);
Outcome look_pcie_links(const Evidence& evidence);
Outcome look_memlock(const Evidence& evidence);
Outcome look_environment(const Evidence& evidence);
Outcome look_ipc_limits(const Evidence& evidence);

// Whether an RDMA card is there, in /sys or in what libibverbs lists.
bool has_rdma(const Evidence& evidence);

// container_limits.cpp: what a container keeps from its processes.
Outcome look_shm(const Evidence& evidence);
Outcome look_namespaces(const Evidence& evidence);
Outcome look_pidfd(const Evidence& evidence);

// hidden_topology.cpp: what a virtual machine does not show, and the file that tells NCCL.
Outcome look_hidden_switches(const Evidence& evidence);
Outcome look_topology_file(const Evidence& evidence);

// driver_versions.cpp: the parts of the NVIDIA driver.
Outcome look_driver_mismatch(const Evidence& evidence);
Outcome look_fabric_manager_version(const Evidence& evidence);
Outcome look_cuda_driver(const Evidence& evidence);
Outcome look_driver_kind(const Evidence& evidence);

// system_versions.cpp: kernel and libraries, and what follows from both.
Outcome look_kernel(const Evidence& evidence);
Outcome look_dma_buf_gpu(const Evidence& evidence);
Outcome look_libibverbs(const Evidence& evidence);

}  // namespace sidestep::diagnose
