// What the environment and cufile.json say.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shims/cufile/settings.hpp"

extern char** environ;

namespace sidestep::cufile {
namespace {

using Json = nlohmann::json;

constexpr std::string_view usual_file = "/etc/cufile.json";

// Those of NVIDIA's guides that are read here.
constexpr std::string_view known_variables[] = {
    "CUFILE_ENV_PATH_JSON",           "CUFILE_FORCE_COMPAT_MODE", "CUFILE_ALLOW_COMPAT_MODE",
    "CUFILE_SKIP_TOPOLOGY_DETECTION", "CUFILE_LOGGING_LEVEL",     "CUFILE_LOGFILE_PATH",
    "CUFILE_USE_PCIP2PDMA",
};

const char* variable(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
}

// Once a process, in one line: a name that is misspelt would else have no effect in silence.
void name_unknown_variables() {
    std::string unknown;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view name = std::string_view(*entry).substr(0, std::string_view(*entry).find('='));
        if (name.substr(0, 7) != "CUFILE_") continue;
        if (std::find(std::begin(known_variables), std::end(known_variables), name) !=
            std::end(known_variables))
            continue;
        unknown += (unknown.empty() ? "" : ", ") + std::string(name);
    }
    if (!unknown.empty())
        warn(fmt::format(
            "without effect in this libcufile.so.0: {} (shims/cufile/README.md lists what has one)",
            unknown));
}

const Json* value_at(const Json& all, const char* section, const char* key) {
    if (*key == '\0') return nullptr;
    const auto part = all.find(section);
    if (part == all.end() || !part->is_object()) return nullptr;
    const auto value = part->find(key);
    return value == part->end() ? nullptr : &*value;
}

Refusal wrong(const std::string& path, std::string_view what) {
    return refusal(CU_FILE_DRIVER_INVALID_PROPS, fmt::format("{}: {}", path, what));
}

// Empty where one is none.
std::vector<std::size_t> numbers(const Json& list) {
    std::vector<std::size_t> found;
    for (const Json& entry : list) {
        if (!entry.is_number_unsigned()) return {};
        found.push_back(entry.get<std::size_t>());
    }
    return found;
}

}  // namespace

Refusal Settings::read_file(const std::string& path) {
    std::ifstream file(path);
    if (!file) return wrong(path, "cannot be read");
    // NVIDIA's own file has comments.
    const Json all = Json::parse(file, nullptr, false, true);
    if (!all.is_object()) return wrong(path, "is not JSON (comments are allowed)");
    for (std::size_t i = 0; i < size_count; ++i) {
        const Json* value = value_at(all, size_settings[i].section, size_settings[i].key);
        if (value == nullptr) continue;
        if (!value->is_number_unsigned())
            return wrong(path, fmt::format("{} is no number", size_settings[i].key));
        if (auto refused = set_size(static_cast<int>(i), value->get<std::size_t>()))
            return wrong(path, refused.words);
    }
    for (std::size_t i = 0; i < flag_count; ++i) {
        const Json* value = value_at(all, flag_settings[i].section, flag_settings[i].key);
        if (value == nullptr) continue;
        if (!value->is_boolean())
            return wrong(path, fmt::format("{} is neither true nor false", flag_settings[i].key));
        set_flag(static_cast<int>(i), value->get<bool>());
    }
    for (std::size_t i = 0; i < text_count; ++i) {
        const Json* value = value_at(all, text_settings[i].section, text_settings[i].key);
        if (value != nullptr && value->is_string()) set_text(static_cast<int>(i), value->get<std::string>());
    }
    const Json* sizes = value_at(all, "properties", "posix_pool_slab_size_kb");
    const Json* counts = value_at(all, "properties", "posix_pool_slab_count");
    if (sizes == nullptr || counts == nullptr) return {};
    Slabs slabs{numbers(*sizes), numbers(*counts)};
    if (slabs.sizes_kb.empty() || slabs.sizes_kb.size() != slabs.counts.size())
        return wrong(
            path,
            "posix_pool_slab_size_kb and posix_pool_slab_count have to be lists of numbers, equally long");
    set_slabs(std::move(slabs));
    return {};
}

// A file that nobody named for this program keeps it from nothing.
void Settings::read_usual_file() {
    if (const Refusal refused = read_file(std::string(usual_file)))
        warn(fmt::format("{}: what follows there is not read", refused.words));
}

void Settings::read_environment() {
    name_unknown_variables();
    const char* named = variable("CUFILE_ENV_PATH_JSON");
    if (named != nullptr)
        trouble_ = read_file(named);
    else if (::access(std::string(usual_file).c_str(), R_OK) == 0)
        read_usual_file();
    const auto flag = [&](const char* name, int parameter) {
        const char* value = variable(name);
        if (value == nullptr) return;
        const std::string_view text(value);
        const bool on = text == "1" || text == "true" || text == "TRUE";
        if (!on && text != "0" && text != "false" && text != "FALSE")
            trouble_ = refusal(CU_FILE_DRIVER_INVALID_PROPS,
                               fmt::format("{}={} is neither true nor false", name, text));
        set_flag(parameter, on);
    };
    flag("CUFILE_FORCE_COMPAT_MODE", CUFILE_PARAM_FORCE_COMPAT_MODE);
    flag("CUFILE_ALLOW_COMPAT_MODE", CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE);
    flag("CUFILE_SKIP_TOPOLOGY_DETECTION", CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION);
    flag("CUFILE_USE_PCIP2PDMA", CUFILE_PARAM_USE_PCIP2PDMA);
    if (const char* value = variable("CUFILE_LOGGING_LEVEL")) set_text(CUFILE_PARAM_LOGGING_LEVEL, value);
    if (const char* value = variable("CUFILE_LOGFILE_PATH")) set_text(CUFILE_PARAM_ENV_LOGFILE_PATH, value);
}

}  // namespace sidestep::cufile
