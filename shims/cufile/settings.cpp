#include "shims/cufile/settings.hpp"

#include <cstdint>

#include <fmt/format.h>

namespace sidestep::cufile {

constexpr std::size_t any = SIZE_MAX / 1024 / 4 * 4;

// Values and ranges: those of NVIDIA's guides, and what its library of CUDA 13.0 answers; where that one knows no upper bound,
// there is none here. Of the batches' time limit no key is known.
const std::array<SizeSetting, size_count> size_settings{{
    {"profile", "cufile_stats", 0, 0, 3, false},
    {"execution", "max_io_queue_depth", 128, 1, 256, false},
    {"execution", "max_io_threads", 4, 0, 32, false},
    {"execution", "min_io_threshold_size_kb", 8192, 4, 4294967295, false},
    {"execution", "max_request_parallelism", 4, 0, 8, false},
    {"properties", "max_direct_io_size_kb", 16384, 64, 16384, true},
    {"properties", "max_device_cache_size_kb", 131072, 64, any, true},
    {"properties", "per_buffer_cache_size_kb", 1024, 64, 16384, true},
    {"properties", "max_device_pinned_mem_size_kb", 33554432, 64, any, true},
    {"properties", "io_batchsize", 128, 1, 256, false},
    {"properties", "poll_mode_max_size_kb", 4, 4, any, true},
    {"", "", 5, 1, 1000, false},
}};

const std::array<FlagSetting, flag_count> flag_settings{{
    {"properties", "use_poll_mode", false},
    {"properties", "allow_compat_mode", true},
    {"properties", "force_compat_mode", false},
    {"properties", "fs_misc_api_check_aggressive", false},
    {"execution", "parallel_io", true},
    {"profile", "nvtx", false},
    {"properties", "allow_system_memory", true},
    {"properties", "use_pci_p2pdma", false},
    {"properties", "prefer_iouring", false},
    {"properties", "force_odirect_mode", false},
    {"properties", "skip_topology_detection", false},
    {"properties", "stream_memops_bypass", false},
    {"properties", "vanilla_posix_mode", false},
    {"properties", "gds_fallback_io", false},
}};

const std::array<TextSetting, text_count> text_settings{{
    {"logging", "level", "ERROR"},
    {"", "", ""},
    {"logging", "dir", ""},
    {"properties", "rdma_transport", ""},
}};

Settings& settings() {
    static auto& one = *new Settings;
    return one;
}

Settings::Settings() {
    for (std::size_t i = 0; i < size_count; ++i) sizes_[i] = size_settings[i].value;
    for (std::size_t i = 0; i < flag_count; ++i) flags_[i] = flag_settings[i].value;
    for (std::size_t i = 0; i < text_count; ++i) texts_[i] = text_settings[i].value;
    read_environment();
}

std::string Settings::text(int parameter) const {
    const std::lock_guard guard(mutex_);
    return texts_[static_cast<std::size_t>(parameter)];
}

void Settings::set_text(int parameter, std::string value) {
    const std::lock_guard guard(mutex_);
    texts_[static_cast<std::size_t>(parameter)] = std::move(value);
}

Slabs Settings::slabs() const {
    const std::lock_guard guard(mutex_);
    return slabs_;
}

void Settings::set_slabs(Slabs slabs) {
    const std::lock_guard guard(mutex_);
    slabs_ = std::move(slabs);
}

Refusal Settings::set_size(int parameter, std::size_t value) {
    const auto at = static_cast<std::size_t>(parameter);
    const SizeSetting& setting = size_settings[at];
    if (value < setting.least || value > setting.most || (setting.blocks && value % 4 != 0))
        return refusal(
            CU_FILE_INVALID_VALUE,
            fmt::format("parameter {} ({}) cannot be {}: from {} to {}{}", parameter, setting.key, value,
                        setting.least, setting.most, setting.blocks ? ", in multiples of 4" : ""));
    sizes_[at] = value;
    return {};
}

}  // namespace sidestep::cufile
