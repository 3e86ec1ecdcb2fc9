// The exported functions about the driver, the machine, and this library.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "shims/cufile/driver.hpp"
#include "shims/cufile/settings.hpp"

using namespace sidestep;
using namespace sidestep::cufile;

namespace {

// How the engine's own backend over NVIDIA's library goes directly here, if at all.
struct Direct {
    bool any = false;
    bool nvidia_fs = false;
    unsigned major = 0, minor = 0;  // of nvidia-fs
};

Direct direct_path(const Context& context) {
    Direct found;
    for (const BackendStatus& backend : context.backends()) {
        if (backend.name != "cufile" || !backend.usable) continue;
        found.any = true;
        found.nvidia_fs = backend.reason.find("nvidia-fs") != std::string::npos;
    }
    if (!found.nvidia_fs) return found;
    std::ifstream told("/proc/driver/nvidia-fs/version");  // "version: 2.28"
    std::string word;
    char dot = 0;
    told >> word >> found.major >> dot >> found.minor;
    return found;
}

unsigned bit(int number) {
    return 1U << static_cast<unsigned>(number);
}

unsigned in_kb(int parameter) {
    return static_cast<unsigned>(settings().size(parameter));
}

void fill(const Context& context, CUfileDrvProps_t& props) {
    const Direct direct = direct_path(context);
    props = {};
    props.nvfs.major_version = direct.major;
    props.nvfs.minor_version = direct.minor;
    props.nvfs.poll_thresh_size = settings().size(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB);
    props.nvfs.max_direct_io_size = settings().size(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB);
    if (direct.any) props.nvfs.dstatusflags = bit(CU_FILE_NVME_SUPPORTED);
    if (settings().flag(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE))
        props.nvfs.dcontrolflags |= bit(CU_FILE_USE_POLL_MODE);
    if (settings().flag(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE))
        props.nvfs.dcontrolflags |= bit(CU_FILE_ALLOW_COMPAT_MODE);
    if (settings().flag(CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE))
        props.nvfs.dcontrolflags |= bit(CU_FILE_VANILLA_POSIX_IO_MODE);
    props.fflags = bit(CU_FILE_DYN_ROUTING_SUPPORTED) | bit(CU_FILE_BATCH_IO_SUPPORTED) |
                   bit(CU_FILE_STREAMS_SUPPORTED) | bit(CU_FILE_PARALLEL_IO_SUPPORTED);
    if (direct.any && !direct.nvidia_fs) props.fflags |= bit(CU_FILE_P2P_SUPPORTED);
    props.max_device_cache_size = in_kb(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB);
    props.per_buffer_cache_size = in_kb(CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB);
    props.max_device_pinned_mem_size = in_kb(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB);
    props.max_batch_io_size = in_kb(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE);
    props.max_batch_io_timeout_msecs = in_kb(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS);
}

CUfileError_t set_limit(const char* call, int parameter, size_t kb) {
    return answer(call, [&]() -> Refusal {
        if (!Driver::get().is_open())
            return refusal(CU_FILE_DRIVER_NOT_INITIALIZED, "the driver is not open");
        Refusal refused = settings().set_size(parameter, kb);
        if (refused) refused.code = CU_FILE_DRIVER_UNSUPPORTED_LIMIT;
        return refused;
    });
}

Refusal bar_size(const Context& context, int gpu, size_t& kb) {
    const auto id = context.topology().find(DeviceKind::gpu, gpu);
    if (gpu < 0 || !id) return refusal(CU_FILE_INVALID_VALUE, fmt::format("there is no GPU {}", gpu));
    const auto& properties = context.topology().device(*id).properties;
    const auto bar = properties.find("bar1");
    kb = bar == properties.end() ? 0 : std::strtoull(bar->second.c_str(), nullptr, 10) >> 10;
    return {};
}

Refusal write_text(const char* filename, const std::string& text) {
    const int file = ::open(filename, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) return system_refusal(errno, fmt::format("{} cannot be created", filename));
    std::size_t written = 0;
    Refusal refused;
    while (written < text.size() && !refused) {
        const ssize_t done = ::write(file, text.data() + written, text.size() - written);
        if (done < 0 && errno != EINTR)
            refused = system_refusal(errno, fmt::format("{} cannot be written", filename));
        if (done > 0) written += static_cast<std::size_t>(done);
    }
    if (::close(file) != 0 && !refused)
        refused = system_refusal(errno, fmt::format("{} cannot be written", filename));
    return refused;
}

CUfileError_t close_driver() {
    return answer("cuFileDriverClose", [] { return Driver::get().close(); });
}

}  // namespace

extern "C" {

CUfileError_t cuFileDriverOpen(void) {
    return answer("cuFileDriverOpen", [] { return Driver::get().open(); });
}

// Programs built against newer headers ask for the second name.
CUfileError_t cuFileDriverClose(void) {
    return close_driver();
}
CUfileError_t cuFileDriverClose_v2(void) {
    return close_driver();
}

long cuFileUseCount(void) {
    return in_a_child() ? 0 : Driver::get().uses();
}

CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* props) {
    return answer("cuFileDriverGetProperties", [&]() -> Refusal {
        if (props == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the properties' address is null");
        if (auto refused = Driver::get().ensure_open()) return refused;
        fill(*Driver::get().context(), *props);
        return {};
    });
}

CUfileError_t cuFileDriverSetPollMode(bool poll, size_t poll_threshold_kb) {
    const CUfileError_t set =
        set_limit("cuFileDriverSetPollMode", CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, poll_threshold_kb);
    if (set.err == CU_FILE_SUCCESS) settings().set_flag(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, poll);
    return set;
}

CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t kb) {
    return set_limit("cuFileDriverSetMaxDirectIOSize", CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, kb);
}

CUfileError_t cuFileDriverSetMaxCacheSize(size_t kb) {
    return set_limit("cuFileDriverSetMaxCacheSize", CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, kb);
}

CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t kb) {
    return set_limit("cuFileDriverSetMaxPinnedMemSize", CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB,
                     kb);
}

CUfileError_t cuFileGetVersion(int* number) {
    return answer("cuFileGetVersion", [&]() -> Refusal {
        if (number == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the version's address is null");
        if (version().refused) return version().refused;
        *number = version().number;
        return {};
    });
}

CUfileError_t cuFileGetBARSizeInKB(int gpu, size_t* kb) {
    return answer("cuFileGetBARSizeInKB", [&]() -> Refusal {
        if (kb == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the size's address is null");
        if (auto refused = Driver::get().ensure_open()) return refused;
        return bar_size(*Driver::get().context(), gpu, *kb);
    });
}

CUfileError_t cuFileExportPCIeTopology(const char* filename) {
    return answer("cuFileExportPCIeTopology", [&]() -> Refusal {
        if (filename == nullptr || *filename == '\0')
            return refusal(CU_FILE_INVALID_VALUE, "the file has no name");
        if (auto refused = Driver::get().ensure_open()) return refused;
        return write_text(filename, Driver::get().context()->topology().to_json() + "\n");
    });
}
}
