#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <optional>

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

struct Least {
    std::size_t offset;
    const char* name;
    int value;
};
// What NCCL refuses is refused, although nothing comes of these numbers here.
template <typename Structure>
Result<void> check_least(const Structure* config, std::initializer_list<Least> fields) {
    for (const auto& [offset, name, min] : fields) {
        const int value = number(config, offset);
        if (value != NCCL_CONFIG_UNDEF_INT && value < min)
            return bad_argument(
                fmt::format("the configuration's {} is {}, at least {} is allowed", name, value, min));
    }
    return {};
}

bool by_copy_engines(int policy) {
    return (policy & NCCL_CTA_POLICY_ZERO) != 0;
}

// NCCL_CTA_POLICY goes before what a program says, as in NCCL; another text than a number counts as not set
// there too.
std::optional<int> policy_of_environment() {
    const char* const text = std::getenv("NCCL_CTA_POLICY");
    if (text == nullptr) return std::nullopt;
    int policy = 0;
    const char* const end = text + std::strlen(text);
    const auto [stopped, error] = std::from_chars(text, end, policy);
    if (error != std::errc() || stopped != end) return std::nullopt;
    return policy;
}

Result<Config> read_fields(const ncclConfig_t* given, const Config& otherwise) {
    if (given == nullptr) return otherwise;
    if (given->size < offsetof(ncclConfig_t, blocking) || given->magic != NCCL_CONFIG_MAGIC)
        return bad_argument("the configuration was not initialised with NCCL_CONFIG_INITIALIZER");
    Config config = otherwise;
    const int blocking = number(given, offsetof(ncclConfig_t, blocking));
    if (blocking != NCCL_CONFIG_UNDEF_INT && blocking != 0 && blocking != 1)
        return bad_argument(fmt::format("the configuration's blocking is {}, 0 and 1 are allowed", blocking));
    if (blocking != NCCL_CONFIG_UNDEF_INT) config.blocking = blocking == 1;
    const std::initializer_list<Least> min = {{offsetof(ncclConfig_t, cgaClusterSize), "cgaClusterSize", 0},
                                              {offsetof(ncclConfig_t, minCTAs), "minCTAs", 1},
                                              {offsetof(ncclConfig_t, maxCTAs), "maxCTAs", 1}};
    if (auto good = check_least(given, min); !good.ok()) return good.error();
    const int policy = number(given, offsetof(ncclConfig_t, CTAPolicy));
    if (policy != NCCL_CONFIG_UNDEF_INT) config.copy_engines = by_copy_engines(policy);
    if (const auto* name = field<const char*>(given, offsetof(ncclConfig_t, commName)); name && *name)
        config.name = *name;
    return config;
}

}  // namespace

Result<Config> Config::read(const ncclConfig_t* given, const Config& otherwise) {
    auto config = read_fields(given, otherwise);
    const auto policy = policy_of_environment();
    if (config && policy) config->copy_engines = by_copy_engines(*policy);
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
                      "this library chooses its own: forceAlgSelection = 0 lets it");
    return check_least(given, {{offsetof(ncclCollConfig_t, minCTAs), "minCTAs", 1},
                               {offsetof(ncclCollConfig_t, maxCTAs), "maxCTAs", 1},
                               {offsetof(ncclCollConfig_t, cgaClusterSize), "cgaClusterSize", 0}});
}

GroupOptions Config::options() const {
    GroupOptions options;
    options.name = name;
    return options;
}

}  // namespace sidestep::nccl
