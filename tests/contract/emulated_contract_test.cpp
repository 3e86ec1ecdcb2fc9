// The host backend as the GPUs of a modelled machine: three, of which the first two are joined by NVLink.
#include "backend_contract.hpp"
#include "backends/host/host_backend.hpp"

namespace sidestep::contract {
namespace {

Result<Topology> three_gpus() {
    Topology::Parts parts;
    parts.name = "three-gpus";
    parts.emulated = true;
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    for (int gpu = 0; gpu < 3; ++gpu) {
        parts.devices.push_back({DeviceKind::gpu, gpu, "gpu:" + std::to_string(gpu), "", "", 0, 1_GiB});
        parts.links.push_back({0, static_cast<DeviceId>(gpu + 1), LinkKind::pcie, 16, 63.015, 0.5});
    }
    parts.links.push_back({1, 2, LinkKind::nvlink, 18, 478.1, 0.5});
    return Topology::create(parts);
}

const End pageable{Place::host(), MemoryKind::pageable};
const End pinned{Place::host(), MemoryKind::pinned};

End gpu(int index) {
    return {Place::gpu(index), MemoryKind::device};
}

INSTANTIATE_TEST_SUITE_P(Contract, BackendContract,
                         testing::Values(BackendUnderTest{
                             .name = "Emulated",
                             .make = [] { return backends::host::create({.threads = 2}); },
                             .topology = three_gpus,
                             .pairs = {{pageable, pageable},
                                       {pageable, pinned},
                                       {pageable, gpu(0)},
                                       {pinned, gpu(0)},
                                       {gpu(1), pinned},
                                       {gpu(1), pageable},
                                       {gpu(0), gpu(0)},
                                       {gpu(0), gpu(1)},
                                       {gpu(0), gpu(2)}},
                         }),
                         NameOfBackend());

}  // namespace
}  // namespace sidestep::contract
