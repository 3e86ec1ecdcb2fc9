// GPUs and pairs of them, for the checks of several groups.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "diagnose/evidence.hpp"

namespace sidestep::diagnose {

// What an outcome shows of pairs or links that are all alike.
inline constexpr std::size_t max_seen = 8;

inline constexpr int cuda_system_not_ready = 802;  // CUDA_ERROR_SYSTEM_NOT_READY

// The GPUs of the machine, by index.
std::vector<DeviceId> gpus_of(const Topology& topology);

// The GPUs, then the RDMA cards and NVMe drives that they may exchange bytes with over PCIe.
std::vector<DeviceId> pcie_partners(const Evidence& evidence);

// What NVML says of a GPU; nullopt without NVML, or where it does not open the GPU.
std::optional<driver::NvmlGpu> nvml_facts(const Evidence& evidence, DeviceId gpu);

// Whether something makes this machine up, so that what lies below its devices is not shown.
bool is_guest(const Evidence& evidence);

// "a, b, c and 5 more": at most `max` of them are named.
std::string listed(const std::vector<std::string>& words, std::size_t max = 6);

// "gpu:0 and gpu:1".
std::string pair_name(const Topology& topology, DeviceId a, DeviceId b);

// What a copy from `a` to `b` loses when it goes through host memory, in GB/s: the rate of the path between
// the two less that of the slower half of the detour (chunks of both halves overlap). 0 where the detour is
// as fast.
double lost_by_bounce(const Topology& topology, DeviceId a, DeviceId b);

// What the driver answers about peer access.
struct RefusedPair {
    DeviceId from = 0;
    DeviceId to = 0;
    driver::P2pStatus status = driver::P2pStatus::unknown;
    const char* asked = "READ";  // or "WRITE"
};
struct PeerAnswers {
    std::vector<RefusedPair> refused;
    int asked = 0;
    std::string untold;  // why NVML did not answer for some; empty: it did
};
// Asks NVML about every pair both ways. Without NVML nothing is asked, and `untold` says why.
PeerAnswers peer_answers(const Evidence& evidence);

// "nvmlDeviceGetP2PStatus(gpu:0, gpu:1, READ)" and what it answered, "2 (GPU not supported)".
std::pair<std::string, std::string> words_of(const Topology& topology, const RefusedPair& refused);

}  // namespace sidestep::diagnose
