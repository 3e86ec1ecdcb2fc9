// The file backend over io_uring.
#include "backend_contract.hpp"
#include "backends/file/file_backend.hpp"

namespace sidestep::contract {
namespace {

std::unique_ptr<backend::Backend> make() {
    return backends::file::create({.io = base::FileIo::uring});
}

Result<Topology> one_cpu() {
    Topology::Parts parts;
    parts.name = "one-cpu";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    return Topology::create(parts);
}

std::string why_not() {
    const auto support = make()->probe(*one_cpu());
    return support.usable ? "" : support.reason;
}

const End host{Place::host(), MemoryKind::pageable};
const End file{Place::file(""), MemoryKind::storage};

INSTANTIATE_TEST_SUITE_P(Contract, BackendContract,
                         testing::Values(BackendUnderTest{
                             .name = "FileUring",
                             .make = make,
                             .topology = one_cpu,
                             .pairs = {{file, host}, {host, file}, {file, file}, {host, host}},
                             .skip = why_not(),
                         }),
                         NameOfBackend());

}  // namespace
}  // namespace sidestep::contract
