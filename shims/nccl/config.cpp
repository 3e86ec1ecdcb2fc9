#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "shims/nccl/communicator.hpp"
#include "shims/nccl/failure.hpp"

namespace sidestep::nccl {
namespace {

// A field that a caller of an older version does not have counts as not set.
template <typename T, typename Structure>
const T* field(const Structure* config, std::size_t offset) {
    if (offset + sizeof(T) > config->size) return nullptr;
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(config) + offset);
}

template <typename Structure>
int number(const Structure* config, std::size_t offset) {
    const int* found = field<int>(config, offset);
    return found ? *found : NCCL_CONFIG_UNDEF_INT;
}

struct Range {
    std::size_t offset;
    const char* name;
    int min;
    int max;
};
constexpr int any = std::numeric_limits<int>::max();
// Without a limit, a rank that never comes would block the others for ever. PyTorch waits as long.
constexpr std::chrono::minutes join_timeout{10};
constexpr int max_ctas = 64;  // NCCL's MAXCHANNELS
constexpr int max_policy = NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO;

// Source: parseCommConfig() of NCCL 2.28.9, and of 2.29 for policies that are combined. Most of these change
// nothing here.
constexpr std::array ranges = {
    Range{offsetof(ncclConfig_t, blocking), "blocking", 0, 1},
    Range{offsetof(ncclConfig_t, cgaClusterSize), "cgaClusterSize", 0, any},
    Range{offsetof(ncclConfig_t, minCTAs), "minCTAs", 1, any},
    Range{offsetof(ncclConfig_t, maxCTAs), "maxCTAs", 1, any},
    Range{offsetof(ncclConfig_t, splitShare), "splitShare", 0, 1},
    Range{offsetof(ncclConfig_t, collnetEnable), "collnetEnable", 0, 1},
    Range{offsetof(ncclConfig_t, CTAPolicy), "CTAPolicy", 0, max_policy},
    Range{offsetof(ncclConfig_t, shrinkShare), "shrinkShare", 0, 1},
    Range{offsetof(ncclConfig_t, nvlsCTAs), "nvlsCTAs", 1, any},
    Range{offsetof(ncclConfig_t, nChannelsPerNetPeer), "nChannelsPerNetPeer", 1, max_ctas},
    Range{offsetof(ncclConfig_t, nvlinkCentricSched), "nvlinkCentricSched", 0, 1}};
constexpr std::array ranges_of_one_call = {
    Range{offsetof(ncclCollConfig_t, minCTAs), "minCTAs", 1, any},
    Range{offsetof(ncclCollConfig_t, maxCTAs), "maxCTAs", 1, any},
    Range{offsetof(ncclCollConfig_t, nvlsCTAs), "nvlsCTAs", 1, any},
    Range{offsetof(ncclCollConfig_t, cgaClusterSize), "cgaClusterSize", 0, any}};

template <typename Structure, std::size_t n>
Result<void> check_ranges(const Structure* config, const std::array<Range, n>& fields) {
    for (const auto& [offset, name, min, max] : fields) {
        const int value = number(config, offset);
        if (value == NCCL_CONFIG_UNDEF_INT || (value >= min && value <= max)) continue;
        const std::string allowed =
            max == any ? fmt::format("at least {}", min) : fmt::format("{} to {}", min, max);
        return bad_argument(
            fmt::format("the configuration's {} is {}, but must be {}", name, value, allowed));
    }
    // NCCL refuses minCTAs without maxCTAs as well, which no program can mean to rely on.
    const int min = number(config, offsetof(Structure, minCTAs));
    const int max = number(config, offsetof(Structure, maxCTAs));
    if (max == NCCL_CONFIG_UNDEF_INT || min <= max) return {};
    return bad_argument(
        fmt::format("the configuration's minCTAs is {}, more than its maxCTAs, {}", min, max));
}

bool by_copy_engines(int policy) {
    return (policy & NCCL_CTA_POLICY_ZERO) != 0;
}

// Variables override what a program says, as in NCCL.
std::optional<int> number_of_environment(const char* name, int min, int max) {
    const char* const text = std::getenv(name);
    if (text == nullptr || *text == '\0') return std::nullopt;
    int found = 0;
    const char* const end = text + std::strlen(text);
    const auto [stopped, error] = std::from_chars(text, end, found);
    if (error == std::errc() && stopped == end && found >= min && found <= max) return found;
    warn(fmt::format("{}={} is ignored: it must be a number from {} to {}", name, text, min, max));
    return std::nullopt;
}

Result<Config> read_fields(const ncclConfig_t* given) {
    if (given->size < offsetof(ncclConfig_t, blocking) || given->magic != NCCL_CONFIG_MAGIC)
        return bad_argument("the configuration was not initialised with NCCL_CONFIG_INITIALIZER");
    if (auto good = check_ranges(given, ranges); !good.ok()) return good.error();
    Config config;
    const int blocking = number(given, offsetof(ncclConfig_t, blocking));
    if (blocking != NCCL_CONFIG_UNDEF_INT) config.blocking = blocking == 1;
    const int policy = number(given, offsetof(ncclConfig_t, CTAPolicy));
    if (policy != NCCL_CONFIG_UNDEF_INT) config.copy_engines = by_copy_engines(policy);
    const int most = number(given, offsetof(ncclConfig_t, maxCTAs));
    if (most != NCCL_CONFIG_UNDEF_INT) config.max_blocks = most;
    if (const auto* name = field<const char*>(given, offsetof(ncclConfig_t, commName)); name && *name)
        config.name = *name;
    return config;
}

}  // namespace

Result<Config> Config::read(const ncclConfig_t* given, const Config& inherited) {
    auto config = given != nullptr ? read_fields(given) : Result<Config>(inherited);
    const auto policy = number_of_environment("NCCL_CTA_POLICY", 0, max_policy);
    if (config && policy) config->copy_engines = by_copy_engines(*policy);
    const auto most = number_of_environment("NCCL_MAX_CTAS", 1, max_ctas);
    if (config && most) config->max_blocks = *most;
    return config;
}

Result<void> check_config(const ncclCollConfig_t* given) {
    if (given == nullptr) return {};
    if (given->size < offsetof(ncclCollConfig_t, ext) || given->magic != NCCL_CONFIG_MAGIC)
        return bad_argument("the configuration was not initialised with NCCL_COLLCONFIG_INITIALIZER");
    if (const auto* event = field<void*>(given, offsetof(ncclCollConfig_t, launchCompletionEvent));
        event && *event)
        return misuse("the configuration's launchCompletionEvent is not supported by this library");
    const auto* algorithm = field<const char*>(given, offsetof(ncclCollConfig_t, algSelection));
    if (algorithm && *algorithm && **algorithm &&
        number(given, offsetof(ncclCollConfig_t, forceAlgSelection)) != 0)
        return misuse(fmt::format("the configuration forces NCCL's algorithm '{}'", *algorithm),
                      "set forceAlgSelection to 0: this library chooses its own algorithms");
    return check_ranges(given, ranges_of_one_call);
}

GroupOptions Config::options() const {
    GroupOptions options;
    options.name = name;
    options.max_blocks = max_blocks;
    // NCCL has no deadline of an operation. Joining reports a value that cannot be read.
    const char* const set = std::getenv("SIDESTEP_GROUP_TIMEOUT");
    if (set == nullptr || *set == '\0') {
        options.timeout = std::chrono::milliseconds(0);
        options.join_timeout = join_timeout;
    }
    return options;
}

}  // namespace sidestep::nccl
