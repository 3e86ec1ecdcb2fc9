#include "driver/memory_map.hpp"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

constexpr Bytes huge_page = 2_MiB;

// mbind(2) by number, since its wrapper lives in libnuma.
Result<void> bind(void* address, Bytes length, int node) {
    constexpr std::size_t bits = 8 * sizeof(unsigned long);
    const auto number = static_cast<std::size_t>(node);
    std::vector<unsigned long> mask(number / bits + 1);
    mask[number / bits] = 1ul << (number % bits);
    // The kernel reads one bit less than it is told.
    if (::syscall(SYS_mbind, address, length, MPOL_BIND, mask.data(), mask.size() * bits + 1, 0) == 0)
        return {};
    const int error = errno;
    return system_error(error, fmt::format("cannot bind memory to NUMA node {}", node), "mbind",
                        error == EPERM ? "a container needs the capability SYS_NICE for it" : "");
}

}  // namespace

Result<MemoryMap> MemoryMap::anonymous(Bytes bytes, int numa_node) {
    const auto page = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
    const auto refuse = [&](int number) {
        return system_error(number, fmt::format("cannot map {} of host memory", format_bytes(bytes)), "mmap");
    };
    if (bytes > (Bytes{1} << 62)) return refuse(ENOMEM);
    MemoryMap map;
    map.length_ = (std::max(bytes, Bytes{1}) + page - 1) / page * page;
    const Bytes slack = bytes >= huge_page ? huge_page : 0;
    void* address = ::mmap(nullptr, map.length_ + slack, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return refuse(errno);
    auto* begin = static_cast<char*>(address);
    if (slack != 0) {
        // Cut the ends off, so that what stays starts at a huge page.
        const Bytes head = (huge_page - reinterpret_cast<std::uintptr_t>(begin) % huge_page) % huge_page;
        if (head != 0) ::munmap(begin, head);
        if (slack != head) ::munmap(begin + head + map.length_, slack - head);
        begin += head;
    }
    map.address_ = begin;
    // A wish: kernels without huge pages answer EINVAL, and nothing but speed is lost.
    if (slack != 0) ::madvise(begin, map.length_, MADV_HUGEPAGE);
    if (numa_node >= 0) SIDESTEP_CHECK(bind(begin, map.length_, numa_node));
    return map;
}

MemoryMap::~MemoryMap() {
    if (address_ != nullptr) ::munmap(address_, length_);
}

}  // namespace sidestep::driver
