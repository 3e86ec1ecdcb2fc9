#include "driver/verbs_facts.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/try.hpp"
#include "driver/dynamic_library.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {

namespace {

// The part of libibverbs that is used here, restated: names and signatures after infiniband/verbs.h of
// rdma-core 44 (github.com/linux-rdma/rdma-core), whose symbols keep their versions. What the pointers lead
// to is never looked into, so the layouts do not matter.
struct DeviceTag;
struct ContextTag;
struct DomainTag;
struct RegionTag;
using DeviceHandle = DeviceTag*;    // struct ibv_device*
using ContextHandle = ContextTag*;  // struct ibv_context*
using DomainHandle = DomainTag*;    // struct ibv_pd*
using RegionHandle = RegionTag*;    // struct ibv_mr*

constexpr const char* no_dma_buf_call =
    "libibverbs has no function ibv_reg_dmabuf_mr: rdma-core is older than 34";

struct VerbsCalls {
    DeviceHandle* (*list)(int*) = nullptr;
    void (*free_list)(DeviceHandle*) = nullptr;
    const char* (*name)(DeviceHandle) = nullptr;
    ContextHandle (*open)(DeviceHandle) = nullptr;
    int (*close)(ContextHandle) = nullptr;
    DomainHandle (*make_domain)(ContextHandle) = nullptr;
    int (*free_domain)(DomainHandle) = nullptr;
    int (*free_region)(RegionHandle) = nullptr;
    // Since rdma-core 34 (symbol version IBVERBS_1.12); null in older ones.
    RegionHandle (*register_dma_buf)(DomainHandle, std::uint64_t, std::size_t, std::uint64_t, int,
                                     int) = nullptr;
};

Result<VerbsCalls> bind_verbs(const DynamicLibrary& library) {
    VerbsCalls functions;
    SIDESTEP_CHECK(library.bind(functions.list, "ibv_get_device_list"));
    SIDESTEP_CHECK(library.bind(functions.free_list, "ibv_free_device_list"));
    SIDESTEP_CHECK(library.bind(functions.name, "ibv_get_device_name"));
    SIDESTEP_CHECK(library.bind(functions.open, "ibv_open_device"));
    SIDESTEP_CHECK(library.bind(functions.close, "ibv_close_device"));
    SIDESTEP_CHECK(library.bind(functions.make_domain, "ibv_alloc_pd"));
    SIDESTEP_CHECK(library.bind(functions.free_domain, "ibv_dealloc_pd"));
    SIDESTEP_CHECK(library.bind(functions.free_region, "ibv_dereg_mr"));
    library.bind_optional(functions.register_dma_buf, "ibv_reg_dmabuf_mr");
    return functions;
}

// The words for what a call left in errno; some providers leave nothing there.
std::string words_of(const char* call, int number) {
    return number == 0 ? fmt::format("{} failed and does not say why", call)
                       : fmt::format("{} failed: {}", call, system_words(number));
}

// Registers the file descriptor -1 as dma-buf memory. The kernel refuses drivers that lack the operation
// before it looks at the descriptor (EOPNOTSUPP; EPROTONOSUPPORT where it lacks the whole command), and
// refuses the descriptor after that (EBADF).
void try_dma_buf(const VerbsCalls& functions, DomainHandle domain, VerbsDevice& device) {
    if (functions.register_dma_buf == nullptr) {
        device.dma_buf_words = no_dma_buf_call;
        return;
    }
    errno = 0;
    const RegionHandle region = functions.register_dma_buf(domain, 0, 0, 0, -1, 0);
    const int number = errno;
    if (region != nullptr) {
        functions.free_region(region);
        device.dma_buf_words = "ibv_reg_dmabuf_mr took a descriptor that is none";
    } else if (number == EBADF) {
        device.dma_buf = true;
        device.dma_buf_words = "ibv_reg_dmabuf_mr(fd -1): EBADF, it would take a real one";
    } else if (number == EOPNOTSUPP || number == EPROTONOSUPPORT) {
        device.dma_buf = false;
        device.dma_buf_words = fmt::format("ibv_reg_dmabuf_mr(fd -1): {}",
                                           number == EOPNOTSUPP ? "EOPNOTSUPP" : "EPROTONOSUPPORT");
    } else {
        device.dma_buf_words = words_of("ibv_reg_dmabuf_mr", number);
    }
}

VerbsDevice read_device(const VerbsCalls& functions, DeviceHandle handle) {
    VerbsDevice device;
    const char* name = functions.name(handle);
    if (name != nullptr) device.name = name;
    errno = 0;
    const ContextHandle context = functions.open(handle);
    if (context == nullptr) {
        device.reason = words_of("ibv_open_device", errno);
        return device;
    }
    device.opens = true;
    errno = 0;
    const DomainHandle domain = functions.make_domain(context);
    if (domain == nullptr) {
        device.dma_buf_words = words_of("ibv_alloc_pd", errno);
    } else {
        try_dma_buf(functions, domain, device);
        functions.free_domain(domain);
    }
    functions.close(context);
    return device;
}

}  // namespace

VerbsFacts read_verbs_facts(const std::string& name) {
    VerbsFacts facts;
    const auto library = DynamicLibrary::open(name);
    if (!library.ok()) {
        facts.reason = library.error().message;
        return facts;
    }
    const auto functions = bind_verbs(*library);
    if (!functions.ok()) {
        facts.reason = functions.error().message;
        return facts;
    }
    facts.loaded = true;
    int count = 0;
    errno = 0;
    const std::unique_ptr<DeviceHandle[], void (*)(DeviceHandle*)> list(functions->list(&count),
                                                                        functions->free_list);
    if (list == nullptr) {
        // ENOSYS: the kernel has no module ib_uverbs. Not a fault of the library, and no cards to speak of.
        facts.reason = words_of("ibv_get_device_list", errno);
        return facts;
    }
    for (int i = 0; i < count; ++i)
        facts.devices.push_back(read_device(*functions, list[static_cast<std::size_t>(i)]));
    return facts;
}

}  // namespace sidestep::driver
