// The p2pmem backend over a made-up /sys, with an ordinary file that stands in for the device's memory: what
// is tested is which bytes go where. tests/vm/jobs/nvme_p2p shows with real kernels that no byte crosses host
// memory.
#include "backend_contract.hpp"
#include "backends/p2pmem/p2pmem_backend.hpp"
#include "contract_ends.hpp"

#include <filesystem>
#include <fstream>

namespace sidestep::contract {
namespace {

constexpr Bytes size = 64_MiB;
constexpr const char* bus_id = "0000:03:00.0";

void put(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path) << text << '\n';
}

// A device with 64 MiB, all of them free.
const std::string& root() {
    static const TemporaryFolder folder;
    static const std::string path = [] {
        const std::filesystem::path device =
            std::filesystem::path(folder.file("tree")) / "sys/bus/pci/devices" / bus_id / "p2pmem";
        std::filesystem::create_directories(device);
        put(device / "size", std::to_string(size));
        put(device / "available", std::to_string(size));
        put(device / "published", "1");
        put(device / "allocate", "");
        std::filesystem::resize_file(device / "allocate", size);
        return folder.file("tree");
    }();
    return path;
}

std::unique_ptr<backend::Backend> make() {
    return backends::p2pmem::create({.root = root(), .any_file = true});
}

Result<Topology> one_cpu() {
    Topology::Parts parts;
    parts.name = "one-cpu";
    parts.devices.push_back({DeviceKind::cpu, 0, "cpu:0", "", "", 0, 0});
    return Topology::create(parts);
}

const End host{Place::host(), MemoryKind::pageable};
const End file{Place::file(""), MemoryKind::storage};
const End device{Place::p2pmem(bus_id), MemoryKind::p2pmem};

INSTANTIATE_TEST_SUITE_P(
    Contract, BackendContract,
    testing::Values(BackendUnderTest{
        .name = "P2pmem",
        .make = make,
        .topology = one_cpu,
        .pairs = {{file, device}, {device, file}, {host, device}, {device, host}, {host, host}, {file, host}},
    }),
    NameOfBackend());

}  // namespace
}  // namespace sidestep::contract
