// A libibverbs whose cards take dma-bufs, for drivers that take none: it maps what the descriptor stands for, and registers
// its pages. All else is the real library's, to which this one is linked. A descriptor of memfd_create(2) does as well.
// SIDESTEP_DMA_BUF_VERBS_FAILS: the number of a registration, from when it was set, for which there is no room.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

bool fails() {
    static std::string asked;
    static int count = 0;
    const char* const now = std::getenv("SIDESTEP_DMA_BUF_VERBS_FAILS");
    const std::string wanted = now != nullptr ? now : "";
    if (wanted != asked) count = 0;
    asked = wanted;
    return !asked.empty() && std::to_string(++count) == asked;
}

}  // namespace

extern "C" {

struct ibv_pd;
struct ibv_mr;
ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, std::size_t length, std::uint64_t iova,
                         unsigned access);

__attribute__((visibility("default"))) ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, std::uint64_t offset,
                                                                 std::size_t length, std::uint64_t iova,
                                                                 int fd, int access) {
    if (fails()) {
        errno = ENOMEM;
        return nullptr;
    }
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t lead = offset % page;
    void* const mapped = ::mmap(nullptr, length + lead, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                                static_cast<off_t>(offset - lead));
    if (mapped == MAP_FAILED) return nullptr;
    ibv_mr* const region = ibv_reg_mr_iova2(domain, static_cast<char*>(mapped) + lead, length, iova,
                                            static_cast<unsigned>(access));
    const int error = errno;
    // The region holds the pages.
    ::munmap(mapped, length + lead);
    errno = error;
    return region;
}
}
