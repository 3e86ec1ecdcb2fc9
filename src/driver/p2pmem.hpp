// PCI peer-to-peer memory as Linux shows it: /sys/bus/pci/devices/*/p2pmem, since 6.2 with a file that
// programs map. The kernel's own text: Documentation/ABI/testing/sysfs-bus-pci-devices-p2pmem and
// Documentation/driver-api/pci/p2pdma.rst.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>
#include "driver/fd.hpp"
#include "driver/machine_files.hpp"

namespace sidestep::driver {

// The peer-to-peer memory of one PCI device.
struct PeerMemory {
    std::string bus_id;
    Bytes size = 0;
    Bytes available = 0;
    bool published = false;    // the kernel's own drivers may take of it too
    bool allocatable = false;  // the kernel lets programs map it: there is a file `allocate`
};

// Of every device that has such memory, by bus id.
std::vector<PeerMemory> list_peer_memory(const MachineFiles& files);

// Of one device; nothing where it has none.
std::optional<PeerMemory> find_peer_memory(const MachineFiles& files, const std::string& bus_id);

// The file to map, with the root before it.
std::string peer_memory_file(const MachineFiles& files, const std::string& bus_id);

// Peer-to-peer memory of this process. The kernel takes it back with the map.
class PeerMap {
public:
    // `bytes` bytes, rounded up to whole pages, of the memory behind `file` (peer_memory_file). What is in it
    // is whatever was there before. Fails with permission_denied, or out_of_memory where the device has no
    // such run left.
    static Result<PeerMap> open(const std::string& file, Bytes bytes);

    PeerMap(PeerMap&& other) noexcept
        : address_(std::exchange(other.address_, nullptr)), length_(std::exchange(other.length_, 0)) {}
    PeerMap& operator=(PeerMap&&) = delete;
    ~PeerMap();

    void* address() const { return address_; }
    Bytes length() const { return length_; }

private:
    PeerMap(void* address, Bytes length) : address_(address), length_(length) {}
    void* address_;
    Bytes length_;
};

// What holds a file's bytes.
struct StorageBelow {
    std::string file_system;    // "ext4", "XFS", or a number in hexadecimal; empty for a block device
    bool passes_pages = false;  // O_DIRECT hands the caller's very pages to the block device
    std::string block_device;   // "/dev/nvme0n1"; empty where the file system is on none, or on several
};
// Of a file, a block device, or a folder in which a file is to be made.
Result<StorageBelow> storage_below(const std::string& path);

// Reads `bytes` bytes at the start of a file or block device around the page cache. 0, or the errno that
// refused.
int try_direct_read(const std::string& path, void* address, Bytes bytes);

}  // namespace sidestep::driver
