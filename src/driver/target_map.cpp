#include "driver/target_map.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "driver/memory_map.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {

Result<TargetMap> TargetMap::create(const Fd& fd, Bytes bytes, const std::string& path) {
    const auto refuse = [&](std::string why) {
        return Error{ErrorCode::unsupported,
                     fmt::format("{} cannot be written through a map: {}", path, why),
                     "mmap",
                     {}};
    };
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) return refuse(system_words(errno));
    if (static_cast<Bytes>(status.st_size) < bytes) return refuse("it is shorter");
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (address == MAP_FAILED) return refuse(system_words(errno));
    TargetMap map(address, bytes);
    if (const int number = populate(address, 1); number != 0)
        return refuse(
            fmt::format("the kernel does not give pages when asked (MADV_POPULATE_WRITE, Linux 5.14): {}",
                        system_words(number)));
    return map;
}

TargetMap::~TargetMap() {
    if (address_ != nullptr) ::munmap(address_, bytes_);
}

bool copy_into_map(void* target, const void* source, Bytes size) {
    // The kernel clears the pages, which copying overwrites while they are in the processor's cache.
    if (populate(target, size) != 0) return false;
    std::memcpy(target, source, size);
    return true;
}

}  // namespace sidestep::driver
