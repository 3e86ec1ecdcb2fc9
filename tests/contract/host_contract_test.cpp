// The host backend on the machine the test runs on.
#include "backend_contract.hpp"
#include "backends/host/host_backend.hpp"

namespace sidestep::contract {
namespace {

Result<Topology> one_cpu() {
    Topology::Parts parts;
    parts.name = "one-cpu";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    return Topology::create(parts);
}

const End host{Place::host(), MemoryKind::pageable};
const End node{Place::host(0), MemoryKind::pageable};

INSTANTIATE_TEST_SUITE_P(Contract, BackendContract,
                         testing::Values(BackendUnderTest{
                             .name = "Host",
                             .make = [] { return backends::host::create({.threads = 3}); },
                             .topology = one_cpu,
                             .pairs = {{host, host}, {host, node}},
                         }),
                         NameOfBackend());

}  // namespace
}  // namespace sidestep::contract
