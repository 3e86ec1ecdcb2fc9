#include "driver/shared_pages.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

// No process can make the memory smaller under another one.
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Result<Fd> make_memory(Bytes length) {
    Fd fd(::memfd_create("sidestep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) return system_error(errno, "memory cannot be shared", "memfd_create");
    if (::ftruncate(fd.get(), static_cast<off_t>(length)) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, seals) != 0)
        return system_error(errno, fmt::format("{} cannot be shared", format_bytes(length)), "memfd");
    return fd;
}

// mbind(2) by number, since its wrapper lives in libnuma. A wish: the private pages were bound when they were
// given, and a container that has since lost the right still may share them.
void prefer_node(void* address, Bytes length, int node) {
    constexpr std::size_t bits = 8 * sizeof(unsigned long);
    const auto number = static_cast<std::size_t>(node);
    std::vector<unsigned long> mask(number / bits + 1);
    mask[number / bits] = 1ul << (number % bits);
    ::syscall(SYS_mbind, address, length, MPOL_BIND, mask.data(), mask.size() * bits + 1, 0);
}

// Which pages of this process's memory something stands behind. Documentation/admin-guide/mm/pagemap.rst of
// Linux.
class PageMap {
public:
    PageMap() : fd_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}

    // May answer yes for pages that were never written, but never no for a page that was.
    bool maybe_written(const char* address, Bytes length) const {
        static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
        constexpr std::uint64_t present = std::uint64_t{1} << 63;
        constexpr std::uint64_t swapped = std::uint64_t{1} << 62;
        const auto begin = reinterpret_cast<std::uintptr_t>(address);
        const std::uintptr_t first = begin / page;
        std::vector<std::uint64_t> entries((begin + length - 1) / page - first + 1);
        const std::size_t wanted = entries.size() * sizeof(std::uint64_t);
        if (!fd_ ||
            ::pread(fd_.get(), entries.data(), wanted, static_cast<off_t>(first * sizeof(std::uint64_t))) !=
                static_cast<ssize_t>(wanted))
            return true;
        return std::any_of(entries.begin(), entries.end(),
                           [](std::uint64_t entry) { return (entry & (present | swapped)) != 0; });
    }

private:
    Fd fd_;
};

// Blocks of zeros are left out, since no page stands behind them yet. Those that nobody touched are not even
// read: reading gives them pages.
void copy_what_was_written(char* to, const char* from, Bytes length) {
    constexpr Bytes block = 64_KiB;
    static constexpr char zeros[block] = {};
    const PageMap pages;
    for (Bytes at = 0; at < length; at += block) {
        const Bytes size = std::min(block, length - at);
        if (pages.maybe_written(from + at, size) && std::memcmp(from + at, zeros, size) != 0)
            std::memcpy(to + at, from + at, size);
    }
}

}  // namespace

Result<Fd> share_pages(void* address, Bytes length, int numa_node) {
    SIDESTEP_TRY(Fd fd, make_memory(length));
    SIDESTEP_TRY(SharedMap shared, SharedMap::open(fd.get(), length));
    ::madvise(shared.address(), length, MADV_HUGEPAGE);  // a wish too
    if (numa_node >= 0) prefer_node(shared.address(), length, numa_node);
    copy_what_was_written(static_cast<char*>(shared.address()), static_cast<const char*>(address), length);
    // Takes the place of the private pages in one step: a reader sees the old ones or the new.
    if (::mremap(shared.address(), length, length, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED)
        return system_error(errno, "memory cannot be shared", "mremap");
    shared.release();
    return fd;
}

Result<Fd> make_shared_memory(Bytes length) {
    SIDESTEP_TRY(Fd fd, make_memory(length));
    const int number = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(length));
    if (number == 0) return fd;
    return system_error(number, fmt::format("{} cannot be shared", format_bytes(length)), "memfd");
}

Result<SharedMap> SharedMap::open(int descriptor, Bytes bytes) {
    // Seals first: only memory has them, and what else another process passes on may be a file of a file system that
    // answers nothing.
    const int seals_found = ::fcntl(descriptor, F_GET_SEALS);
    struct stat status {};
    if (seals_found < 0 || (seals_found & F_SEAL_SHRINK) == 0 || ::fstat(descriptor, &status) != 0 ||
        status.st_size <= 0)
        return Error{
            ErrorCode::io_error, "a descriptor that should be shared memory is something else", "memfd", {}};
    // Touching huge pages that the system has no more of ends in SIGBUS.
    struct statfs system {};
    if (::fstatfs(descriptor, &system) != 0 || system.f_type != TMPFS_MAGIC)
        return Error{ErrorCode::io_error, "shared memory is not of ordinary pages", "memfd", {}};
    const auto length = static_cast<Bytes>(status.st_size);
    if (length < bytes)
        return Error{ErrorCode::io_error,
                     fmt::format("shared memory has {} bytes where {} were promised", length, bytes),
                     "memfd",
                     {}};
    void* address =
        ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    if (address == MAP_FAILED)
        return system_error(errno, fmt::format("cannot map {} of shared memory", format_bytes(length)),
                            "mmap");
    return SharedMap(address, length);
}

SharedMap::~SharedMap() {
    if (address_ != nullptr) ::munmap(address_, length_);
}

}  // namespace sidestep::driver
