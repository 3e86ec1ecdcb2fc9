// The exported functions about settings.
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "shims/cufile/driver.hpp"
#include "shims/cufile/settings.hpp"

using namespace sidestep::cufile;

namespace {

Refusal check(int parameter, std::size_t count, const void* value) {
    if (value == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the value's address is null");
    if (parameter < 0 || static_cast<std::size_t>(parameter) >= count)
        return refusal(CU_FILE_INVALID_VALUE,
                       fmt::format("there is no parameter {} of this type", parameter));
    return {};
}

// Settings are made before the driver opens.
Refusal check_to_set(int parameter, std::size_t count, const void* value) {
    if (auto wrong = check(parameter, count, value)) return wrong;
    if (Driver::get().is_open())
        return refusal(CU_FILE_DRIVER_ALREADY_OPEN, "the driver is open: set parameters before that");
    return {};
}

Refusal copy_text(const std::string& text, char* into, int length) {
    if (length <= 0 || text.size() >= static_cast<std::size_t>(length))
        return refusal(CU_FILE_INVALID_VALUE,
                       fmt::format("{} bytes are too few for the {} of the text", length, text.size() + 1));
    std::memcpy(into, text.c_str(), text.size() + 1);
    return {};
}

Refusal check_p2p(int storage) {
    if (storage >= 0 && storage < CU_FILE_MAX_TARGET_TYPES) return {};
    return refusal(CU_FILE_INVALID_VALUE, fmt::format("there is no storage of the kind {}", storage));
}

constexpr int all_p2p = CUFILE_P2PDMA | CUFILE_NVFS | CUFILE_DMABUF | CUFILE_C2C | CUFILE_NVIDIA_PEERMEM;
constexpr int most_slabs = 16;

}  // namespace

extern "C" {

CUfileError_t cuFileGetParameterSizeT(CUFileSizeTConfigParameter_t parameter, size_t* value) {
    return answer("cuFileGetParameterSizeT", [&]() -> Refusal {
        if (auto wrong = check(parameter, size_count, value)) return wrong;
        *value = settings().size(parameter);
        return {};
    });
}

CUfileError_t cuFileGetParameterBool(CUFileBoolConfigParameter_t parameter, bool* value) {
    return answer("cuFileGetParameterBool", [&]() -> Refusal {
        if (auto wrong = check(parameter, flag_count, value)) return wrong;
        *value = settings().flag(parameter);
        return {};
    });
}

CUfileError_t cuFileGetParameterString(CUFileStringConfigParameter_t parameter, char* text, int length) {
    return answer("cuFileGetParameterString", [&]() -> Refusal {
        if (auto wrong = check(parameter, text_count, text)) return wrong;
        return copy_text(settings().text(parameter), text, length);
    });
}

CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t parameter, size_t value) {
    return answer("cuFileSetParameterSizeT", [&]() -> Refusal {
        if (auto wrong = check_to_set(parameter, size_count, &value)) return wrong;
        return settings().set_size(parameter, value);
    });
}

CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t parameter, bool value) {
    return answer("cuFileSetParameterBool", [&]() -> Refusal {
        if (auto wrong = check_to_set(parameter, flag_count, &value)) return wrong;
        settings().set_flag(parameter, value);
        return {};
    });
}

CUfileError_t cuFileSetParameterString(CUFileStringConfigParameter_t parameter, const char* text) {
    return answer("cuFileSetParameterString", [&]() -> Refusal {
        if (auto wrong = check_to_set(parameter, text_count, text)) return wrong;
        settings().set_text(parameter, text);
        return {};
    });
}

CUfileError_t cuFileGetParameterMinMaxValue(CUFileSizeTConfigParameter_t parameter, size_t* least,
                                            size_t* most) {
    return answer("cuFileGetParameterMinMaxValue", [&]() -> Refusal {
        if (auto wrong = check(parameter, size_count, least)) return wrong;
        if (most == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the upper bound's address is null");
        const SizeSetting& setting = size_settings[static_cast<std::size_t>(parameter)];
        *least = setting.least;
        *most = setting.most;
        return {};
    });
}

CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t* sizes_kb, const size_t* counts, int length) {
    return answer("cuFileSetParameterPosixPoolSlabArray", [&]() -> Refusal {
        if (auto wrong = check_to_set(0, 1, sizes_kb)) return wrong;
        if (counts == nullptr || length <= 0 || length > most_slabs)
            return refusal(
                CU_FILE_INVALID_VALUE,
                fmt::format("there are 1 to {} kinds of slabs, each with a size and a count", most_slabs));
        Slabs slabs{{sizes_kb, sizes_kb + length}, {counts, counts + length}};
        for (int i = 0; i < length; ++i)
            if (sizes_kb[i] == 0 || sizes_kb[i] % 4 != 0 || counts[i] == 0)
                return refusal(
                    CU_FILE_INVALID_VALUE,
                    fmt::format(
                        "slab {} has {} KiB and is there {} times: a multiple of 4, and once at least", i,
                        sizes_kb[i], counts[i]));
        settings().set_slabs(std::move(slabs));
        return {};
    });
}

CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t* sizes_kb, size_t* counts, int length) {
    return answer("cuFileGetParameterPosixPoolSlabArray", [&]() -> Refusal {
        const Slabs slabs = settings().slabs();
        if (sizes_kb == nullptr || counts == nullptr || length < static_cast<int>(slabs.sizes_kb.size()))
            return refusal(CU_FILE_INVALID_VALUE, fmt::format("there are {} kinds of slabs, and room for {}",
                                                              slabs.sizes_kb.size(), length));
        for (std::size_t i = 0; i < slabs.sizes_kb.size(); ++i) {
            sizes_kb[i] = slabs.sizes_kb[i];
            counts[i] = slabs.counts[i];
        }
        return {};
    });
}

CUfileError_t cuFileDriverSetP2PFlags(CUfileDriverStatusFlags_t storage, CUfileP2PFlags_t flags) {
    return answer("cuFileDriverSetP2PFlags", [&]() -> Refusal {
        if (auto wrong = check_p2p(storage)) return wrong;
        if ((flags & ~all_p2p) != 0)
            return refusal(CU_FILE_INVALID_VALUE, fmt::format("there are no flags {:#x}", flags & ~all_p2p));
        if (Driver::get().is_open())
            return refusal(CU_FILE_DRIVER_ALREADY_OPEN, "the driver is open: set flags before that");
        settings().set_p2p_flags(storage, flags);
        return {};
    });
}

CUfileError_t cuFileDriverGetP2PFlags(CUfileDriverStatusFlags_t storage, CUfileP2PFlags_t* flags) {
    return answer("cuFileDriverGetP2PFlags", [&]() -> Refusal {
        if (auto wrong = check_p2p(storage)) return wrong;
        if (flags == nullptr) return refusal(CU_FILE_INVALID_VALUE, "the flags' address is null");
        *flags = settings().p2p_flags(storage);
        return {};
    });
}
}
