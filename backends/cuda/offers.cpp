#include "backends/cuda/offers.hpp"

namespace sidestep::backends::cuda {
namespace {

using backend::Capability;
using backend::MemorySet;

// A kernel's share of what a copy engine reaches over NVLink, measured with nvbandwidth 0.8 on a host with 4 H200
// (driver 580.159.04).
constexpr double kernel_over_nvlink = 376.0 / 396.0;

// Copies inside one GPU meet no link; its memory is the ceiling. The kernel's own figure is below the
// copy engine's, so that it is chosen only when asked for.
constexpr double copy_engine_local_gb_per_s = 2093;
constexpr double kernel_local_gb_per_s = 2000;

// From the call to the completed event, for a piece of a few bytes: estimates.
constexpr double copy_engine_host_us = 6;
constexpr double copy_engine_peer_us = 7;
constexpr double copy_engine_local_us = 5;
constexpr double kernel_us = 8;

const MemorySet host_memory{MemoryKind::pinned, MemoryKind::managed};
const MemorySet gpu_memory{MemoryKind::device, MemoryKind::pool, MemoryKind::vmm, MemoryKind::managed};

Capability capability(PlaceKind from, PlaceKind to, backend::Reach reach, Prefer engine, const char* reason) {
    Capability made;
    made.from = from;
    made.to = to;
    made.from_memory = from == PlaceKind::host ? host_memory : gpu_memory;
    made.to_memory = to == PlaceKind::host ? host_memory : gpu_memory;
    made.reach = reach;
    made.engine = engine == Prefer::kernel ? "kernel" : "copy engine";
    made.meets = engine;
    made.reason = reason;
    made.streams = true;
    return made;
}

}  // namespace

std::vector<Capability> capabilities(bool batch_call) {
    const PlaceKind host = PlaceKind::host;
    const PlaceKind gpu = PlaceKind::gpu;
    std::vector<Capability> all(6);
    all[host_to_gpu] = capability(host, gpu, backend::Reach::host_link, Prefer::copy_engine,
                                  "DMA from pinned memory, without the CPU");
    all[gpu_to_host] = capability(gpu, host, backend::Reach::host_link, Prefer::copy_engine,
                                  "DMA to pinned memory, without the CPU");
    all[peer_copy] = capability(gpu, gpu, backend::Reach::peer_access, Prefer::copy_engine,
                                "peer DMA, without host memory or SMs");
    all[peer_kernel] = capability(gpu, gpu, backend::Reach::peer_access, Prefer::kernel,
                                  "loads over peer-mapped memory, without host memory");
    all[local_copy] =
        capability(gpu, gpu, backend::Reach::same_gpu, Prefer::copy_engine, "DMA inside the GPU");
    all[local_kernel] =
        capability(gpu, gpu, backend::Reach::same_gpu, Prefer::kernel, "loads and stores inside the GPU");

    all[peer_kernel].efficiency = kernel_over_nvlink;
    all[local_copy].max_gb_per_s = copy_engine_local_gb_per_s;
    all[local_kernel].max_gb_per_s = kernel_local_gb_per_s;
    all[host_to_gpu].latency_us = all[gpu_to_host].latency_us = copy_engine_host_us;
    all[peer_copy].latency_us = copy_engine_peer_us;
    all[local_copy].latency_us = copy_engine_local_us;
    all[peer_kernel].latency_us = all[local_kernel].latency_us = kernel_us;
    for (std::size_t engine = 0; engine < all.size() && !batch_call; ++engine)
        if (!is_kernel(engine))
            all[engine].reason += "; batches by the kernel or one by one, the driver is of before CUDA 12.8";
    return all;
}

}  // namespace sidestep::backends::cuda
