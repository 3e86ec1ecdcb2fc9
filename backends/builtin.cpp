#include "backends/builtin.hpp"

#include "backends/file/file_backend.hpp"
#include "backends/host/host_backend.hpp"
#include "backends/p2pmem/p2pmem_backend.hpp"
#include "config.hpp"

#if SIDESTEP_HAVE_CUDA
#include "backends/cuda/cuda_backend.hpp"
#include "backends/cufile/cufile_backend.hpp"
#endif

namespace sidestep::backends {
namespace {

#if !SIDESTEP_HAVE_CUDA
using backend::Capability;
using backend::Offer;
using backend::Reach;
using backend::Support;

Capability missing(PlaceKind from, PlaceKind to, Reach reach, const char* engine) {
    Capability capability;
    capability.from = from;
    capability.to = to;
    capability.reach = reach;
    capability.engine = engine;
    return capability;
}

// The direct path between files and GPU memory.
Offer without_cufile() {
    Offer offer;
    offer.name = "cufile";
    offer.support = Support::no("this build has no cufile backend (GPUDirect Storage)",
                                "build with the CUDA toolkit 12.4 or newer");
    offer.capabilities = {missing(PlaceKind::file, PlaceKind::gpu, Reach::storage_gpu, "direct storage"),
                          missing(PlaceKind::gpu, PlaceKind::file, Reach::storage_gpu, "direct storage")};
    return offer;
}

Offer without_cuda() {
    Offer offer;
    offer.name = "cuda";
    offer.support =
        Support::no("this build has no CUDA backend", "build with the CUDA toolkit 12.4 or newer");
    offer.capabilities = {missing(PlaceKind::host, PlaceKind::gpu, Reach::host_link, "copy engine"),
                          missing(PlaceKind::gpu, PlaceKind::host, Reach::host_link, "copy engine"),
                          missing(PlaceKind::gpu, PlaceKind::gpu, Reach::peer_access, "copy engine"),
                          missing(PlaceKind::gpu, PlaceKind::gpu, Reach::same_gpu, "copy engine")};
    return offer;
}
#endif

}  // namespace

void add_builtin(backend::Registry& registry, const Topology& topology,
                 const base::Environment& environment) {
    registry.add(host::create({environment.host_threads, environment.emulated_gpu_memory}), topology);
    registry.add(file::create({environment.file_io}), topology);
    if (!topology.emulated()) {
#if SIDESTEP_HAVE_CUDA
        registry.add(cuda::create(), topology);
#else
        registry.add_absent(without_cuda());
#endif
        registry.add(p2pmem::create({}), topology);
    }
#if SIDESTEP_HAVE_CUDA
    // Of an emulated machine too: its routes tell of the path that a real one may have.
    registry.add(cufile::create({.off = environment.cufile == base::Cufile::off}), topology);
#else
    registry.add_absent(without_cufile());
#endif
}

}  // namespace sidestep::backends
