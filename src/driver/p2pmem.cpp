#include "driver/p2pmem.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "base/try.hpp"
#include "driver/files.hpp"
#include "driver/memory_map.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

constexpr const char* devices = "/sys/bus/pci/devices";

std::string folder_of(const std::string& bus_id) {
    return fmt::format("{}/{}/p2pmem", devices, bus_id);
}

Bytes bytes_in(const MachineFiles& files, const std::string& path) {
    const long value = files.number(path).value_or(0);
    return value > 0 ? static_cast<Bytes>(value) : 0;
}

// linux/magic.h: ext2, ext3 and ext4 share one number, and one driver.
constexpr std::uint64_t ext4_magic = 0xEF53;
constexpr std::uint64_t xfs_magic = 0x58465342;

std::string name_of(std::uint64_t magic) {
    if (magic == ext4_magic) return "ext4";
    if (magic == xfs_magic) return "XFS";
    if (magic == 0x01021994) return "tmpfs";
    if (magic == 0x794c7630) return "overlay";
    if (magic == 0x9123683e) return "btrfs";
    if (magic == 0x6969) return "NFS";
    return fmt::format("{:#x}", magic);
}

std::string block_device_of(dev_t device) {
    const auto text = read_text(fmt::format("/sys/dev/block/{}:{}/uevent", major(device), minor(device)));
    if (!text) return {};
    constexpr std::string_view key = "DEVNAME=";
    const auto at = text->find(key);
    if (at == std::string::npos) return {};
    const auto begin = at + key.size();
    return "/dev/" + text->substr(begin, text->find('\n', begin) - begin);
}

}  // namespace

std::optional<PeerMemory> find_peer_memory(const MachineFiles& files, const std::string& bus_id) {
    const std::string folder = folder_of(bus_id);
    PeerMemory memory;
    memory.bus_id = bus_id;
    memory.size = bytes_in(files, folder + "/size");
    if (memory.size == 0) return std::nullopt;
    memory.available = bytes_in(files, folder + "/available");
    memory.published = files.number(folder + "/published").value_or(0) != 0;
    memory.allocatable = files.exists(folder + "/allocate");
    return memory;
}

std::vector<PeerMemory> list_peer_memory(const MachineFiles& files) {
    std::vector<PeerMemory> found;
    for (const std::string& bus_id : files.names(devices))
        if (auto memory = find_peer_memory(files, bus_id)) found.push_back(std::move(*memory));
    return found;
}

std::string peer_memory_file(const MachineFiles& files, const std::string& bus_id) {
    return files.root() + folder_of(bus_id) + "/allocate";
}

Result<PeerMap> PeerMap::open(const std::string& file, Bytes bytes) {
    SIDESTEP_TRY(const Fd fd, open_file(file, O_RDWR));
    const Bytes page = page_size();
    const auto refuse = [&](int number) {
        return system_error(number, fmt::format("cannot map {} of peer-to-peer memory", format_bytes(bytes)),
                            file);
    };
    if (bytes == 0 || bytes > (Bytes{1} << 62)) return refuse(ENOMEM);
    const Bytes length = base::round_up(bytes, page);
    // The kernel gives such memory to shared mappings only.
    void* const address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (address == MAP_FAILED) return refuse(errno);
    return PeerMap(address, length);
}

PeerMap::~PeerMap() {
    if (address_ != nullptr) ::munmap(address_, length_);
}

Result<StorageBelow> storage_below(const std::string& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0)
        return system_error(errno, fmt::format("cannot look at {}", path), "stat");
    StorageBelow below;
    if (S_ISBLK(status.st_mode)) {
        below.passes_pages = true;
        below.block_device = path;
        return below;
    }
    struct statfs system {};
    if (::statfs(path.c_str(), &system) != 0)
        return system_error(errno, fmt::format("cannot look at the file system of {}", path), "statfs");
    const auto magic = static_cast<std::uint64_t>(static_cast<std::uint32_t>(system.f_type));
    below.file_system = name_of(magic);
    below.passes_pages = magic == ext4_magic || magic == xfs_magic;
    below.block_device = block_device_of(status.st_dev);
    return below;
}

int try_direct_read(const std::string& path, void* address, Bytes bytes) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    if (!fd) return errno;
    for (;;) {
        const auto moved = ::pread(fd.get(), address, bytes, 0);
        if (moved >= 0) return 0;
        if (errno != EINTR) return errno;
    }
}

}  // namespace sidestep::driver
