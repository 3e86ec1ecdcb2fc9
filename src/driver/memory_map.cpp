#include "driver/memory_map.hpp"

#include <linux/mempolicy.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/rounding.hpp"
#include "base/try.hpp"
#include "base/workers.hpp"
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

// With several threads: zeroing is what takes the time, and one thread does some 5 GB/s.
bool populate_with(char* begin, Bytes length, int threads) {
    constexpr Bytes min_a_thread = 32_MiB;
    const Bytes max = std::max<Bytes>(length / min_a_thread, 1);
    const Bytes count = std::min(static_cast<Bytes>(std::max(threads, 1)), max);
    const Bytes share = base::round_up(length / count, huge_page);
    std::atomic<bool> well{true};
    const auto fill = [&](Bytes offset) {
        if (populate(begin + offset, std::min(share, length - offset)) != 0) well = false;
    };
    base::in_parallel(count, (length + share - 1) / share, [&](std::size_t i) { fill(i * share); });
    return well;
}

}  // namespace

Bytes page_size() {
    static const auto size = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
    return size;
}

std::vector<bool> present_pages(const void* begin, Bytes length) {
    std::vector<unsigned char> told((length + page_size() - 1) / page_size(), 1);
    if (::mincore(const_cast<void*>(begin), length, told.data()) != 0) std::ranges::fill(told, 1);
    std::vector<bool> present;
    for (const unsigned char each : told) present.push_back((each & 1) != 0);
    return present;
}

int populate(void* begin, Bytes length) {
    constexpr int populate_write = 23;  // by number since older headers lack it
    const auto first = reinterpret_cast<std::uintptr_t>(begin) / page_size() * page_size();
    const Bytes whole = reinterpret_cast<std::uintptr_t>(begin) + length - first;
    while (::madvise(reinterpret_cast<void*>(first), whole, populate_write) != 0)
        if (errno != EINTR) return errno;
    return 0;
}

Result<MemoryMap> MemoryMap::anonymous(Bytes bytes, int numa_node) {
    const Bytes page = page_size();
    const auto refuse = [&](int number) {
        return system_error(number, fmt::format("cannot map {} of host memory", format_bytes(bytes)), "mmap");
    };
    if (bytes > (Bytes{1} << 62)) return refuse(ENOMEM);
    MemoryMap map;
    map.length_ = base::round_up(std::max<Bytes>(bytes, 1), page);
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
    if (slack != 0 && ::madvise(begin, map.length_, MADV_HUGEPAGE) == 0) map.pages_ = PageKind::huge_wished;
    if (numa_node >= 0) SIDESTEP_CHECK(bind(begin, map.length_, numa_node));
    return map;
}

Result<MemoryMap> MemoryMap::populated(Bytes bytes, int numa_node, int threads) {
    if (bytes >= huge_page && bytes <= (Bytes{1} << 62)) {
        MemoryMap map;
        map.length_ = base::round_up(bytes, huge_page);
        void* address = ::mmap(nullptr, map.length_, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT), -1, 0);
        if (address != MAP_FAILED) {
            map.address_ = address;
            map.pages_ = PageKind::huge;
            // A node, or a control group, may have fewer free than the machine. Touching such memory would
            // end the process, so it is taken only with every page behind it.
            const bool bound = numa_node < 0 || bind(address, map.length_, numa_node);
            if (bound && populate_with(static_cast<char*>(address), map.length_, threads)) return map;
        }
    }
    SIDESTEP_TRY(MemoryMap map, anonymous(bytes, numa_node));
    populate_with(static_cast<char*>(map.address_), map.length_, threads);  // nothing but speed is lost
    return map;
}

Bytes huge_bytes(const void* address, Bytes bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    std::ifstream maps("/proc/self/smaps");
    Bytes huge = 0;
    bool inside = false;
    for (std::string line; std::getline(maps, line);) {
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
        unsigned long long kilobytes = 0;
        if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
            inside = begin < first + bytes && first < end;
        else if (inside && (std::sscanf(line.c_str(), "AnonHugePages: %llu kB", &kilobytes) == 1 ||
                            std::sscanf(line.c_str(), "Private_Hugetlb: %llu kB", &kilobytes) == 1))
            huge += kilobytes << 10;
    }
    return std::min(huge, bytes);
}

MemoryMap::~MemoryMap() {
    if (address_ != nullptr) ::munmap(address_, length_);
}

}  // namespace sidestep::driver
