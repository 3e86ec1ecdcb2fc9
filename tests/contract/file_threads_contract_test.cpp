// The file backend over threads with pread and pwrite.
#include "backend_contract.hpp"
#include "backends/file/file_backend.hpp"

namespace sidestep::contract {
namespace {

std::unique_ptr<backend::Backend> make() {
    return backends::file::create({.io = base::FileIo::threads});
}

Result<Topology> one_cpu() {
    Topology::Parts parts;
    parts.name = "one-cpu";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    return Topology::create(parts);
}

const End host{Place::host(), MemoryKind::pageable};
const End file{Place::file(""), MemoryKind::storage};

INSTANTIATE_TEST_SUITE_P(Contract, BackendContract,
                         testing::Values(BackendUnderTest{
                             .name = "FileThreads",
                             .make = make,
                             .topology = one_cpu,
                             .pairs = {{file, host}, {host, file}, {file, file}, {host, host}},
                         }),
                         NameOfBackend());

}  // namespace
}  // namespace sidestep::contract
