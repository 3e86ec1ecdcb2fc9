#include <cstddef>

#include <fmt/format.h>

#include "shims/nccl/communicator.hpp"
#include "shims/nccl/failure.hpp"

namespace sidestep::nccl {
namespace {

// A field that a caller of an older version does not have counts as not set.
template <typename T>
const T* field(const ncclConfig_t* config, std::size_t offset) {
    if (offset + sizeof(T) > config->size) return nullptr;
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(config) + offset);
}

int number(const ncclConfig_t* config, std::size_t offset) {
    const int* found = field<int>(config, offset);
    return found ? *found : NCCL_CONFIG_UNDEF_INT;
}

Result<void> check_least(const ncclConfig_t* config, std::size_t offset, const char* name, int least) {
    const int value = number(config, offset);
    if (value == NCCL_CONFIG_UNDEF_INT || value >= least) return {};
    return bad_argument(
        fmt::format("the configuration's {} is {}, at least {} is allowed", name, value, least));
}

}  // namespace

Result<Config> Config::read(const ncclConfig_t* given, const Config& otherwise) {
    if (given == nullptr) return otherwise;
    if (given->size < offsetof(ncclConfig_t, blocking) || given->magic != NCCL_CONFIG_MAGIC)
        return bad_argument("the configuration was not initialised with NCCL_CONFIG_INITIALIZER");
    Config config = otherwise;
    const int blocking = number(given, offsetof(ncclConfig_t, blocking));
    if (blocking != NCCL_CONFIG_UNDEF_INT && blocking != 0 && blocking != 1)
        return bad_argument(fmt::format("the configuration's blocking is {}, 0 and 1 are allowed", blocking));
    if (blocking != NCCL_CONFIG_UNDEF_INT) config.blocking = blocking == 1;
    // Of no use here, but what NCCL refuses is refused.
    if (auto good = check_least(given, offsetof(ncclConfig_t, cgaClusterSize), "cgaClusterSize", 0);
        !good.ok())
        return good.error();
    if (auto good = check_least(given, offsetof(ncclConfig_t, minCTAs), "minCTAs", 1); !good.ok())
        return good.error();
    if (auto good = check_least(given, offsetof(ncclConfig_t, maxCTAs), "maxCTAs", 1); !good.ok())
        return good.error();
    if (const auto* name = field<const char*>(given, offsetof(ncclConfig_t, commName)); name && *name)
        config.name = *name;
    return config;
}

GroupOptions Config::options() const {
    GroupOptions options;
    options.name = name;
    return options;
}

}  // namespace sidestep::nccl
