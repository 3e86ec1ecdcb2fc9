// Settings: what programs set with cuFileSetParameter..., else the environment, else a file cufile.json, else cuFile's defaults.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include <sidestep/units.hpp>
#include "shims/cufile/failure.hpp"

namespace sidestep::cufile {

inline constexpr std::size_t size_count = 12, flag_count = 14, text_count = 4;

// Where a setting stands in cufile.json ("" where it has no place there), and what it may be.
struct SizeSetting {
    const char* section;
    const char* key;
    std::size_t value, least, most;
    bool blocks;  // a multiple of 4 KiB
};
struct FlagSetting {
    const char* section;
    const char* key;
    bool value;
};
struct TextSetting {
    const char* section;
    const char* key;
    const char* value;
};
// In the order of the numbers of the parameters.
extern const std::array<SizeSetting, size_count> size_settings;
extern const std::array<FlagSetting, flag_count> flag_settings;
extern const std::array<TextSetting, text_count> text_settings;

// Slabs of host memory, as cuFile's compatibility mode has them. Remembered, and without effect: the engine's pool is bounded by
// itself.
struct Slabs {
    std::vector<std::size_t> sizes_kb{4, 1024, 16384};
    std::vector<std::size_t> counts{128, 64, 64};
};

// Safe to use from several threads. Numbers and flags are single loads.
class Settings {
public:
    Settings();  // of the environment and the file

    // A file that cannot be read: CU_FILE_DRIVER_INVALID_PROPS, for the opening of the driver.
    const Refusal& trouble() const { return trouble_; }

    std::size_t size(int parameter) const { return sizes_[static_cast<std::size_t>(parameter)].load(); }
    bool flag(int parameter) const {
        return flags_[static_cast<std::size_t>(parameter)].load(std::memory_order_relaxed);
    }
    std::string text(int parameter) const;
    Slabs slabs() const;
    int p2p_flags(int storage) const { return p2p_[static_cast<std::size_t>(storage)].load(); }

    // CU_FILE_INVALID_VALUE for a number out of its range.
    Refusal set_size(int parameter, std::size_t value);
    void set_flag(int parameter, bool value) { flags_[static_cast<std::size_t>(parameter)] = value; }
    void set_text(int parameter, std::string value);
    void set_slabs(Slabs slabs);
    void set_p2p_flags(int storage, int flags) { p2p_[static_cast<std::size_t>(storage)] = flags; }

private:
    Refusal read_file(const std::string& path);
    void read_usual_file();
    void read_environment();

    std::array<std::atomic<std::size_t>, size_count> sizes_{};
    std::array<std::atomic<bool>, flag_count> flags_{};
    std::array<std::atomic<int>, CU_FILE_MAX_TARGET_TYPES> p2p_{};
    mutable std::mutex mutex_;  // of what follows
    std::array<std::string, text_count> texts_;
    Slabs slabs_;
    Refusal trouble_;  // constant
};

// Read when it is first asked for. Never destroyed.
Settings& settings();

}  // namespace sidestep::cufile
