#include "shims/cufile/driver.hpp"

#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "shims/cufile/buffers.hpp"
#include "shims/cufile/files.hpp"
#include "shims/cufile/settings.hpp"
#include "shims/cufile/stats.hpp"
#include "shims/cufile/stream.hpp"

namespace sidestep::cufile {
namespace {

Version read_version() {
    const char* text = std::getenv("SIDESTEP_CUFILE_VERSION");
    if (text == nullptr || *text == '\0') return {};
    constexpr int oldest = 0, newest = 19;
    char* end = nullptr;
    const long minor = std::strncmp(text, "1.", 2) == 0 ? std::strtol(text + 2, &end, 10) : -1;
    if (end != nullptr && end != text + 2 && *end == '\0' && minor >= oldest && minor <= newest)
        return {1000 + 10 * static_cast<int>(minor), {}};
    return {0,
            refusal(CU_FILE_DRIVER_VERSION_READ_ERROR,
                    fmt::format("SIDESTEP_CUFILE_VERSION={} cannot be read: set it to 1.0 to 1.19", text))};
}

}  // namespace

const Version& version() {
    static const Version read = read_version();
    return read;
}

Driver& Driver::get() {
    static auto& one = *new Driver;
    return one;
}

Refusal Driver::open() {
    const std::lock_guard guard(mutex_);
    return open_locked();
}

Refusal Driver::ensure_open() {
    if (is_open()) return {};
    const std::lock_guard guard(mutex_);
    if (is_open()) return {};
    return open_locked();
}

Refusal Driver::ensure_machine() {
    const std::lock_guard guard(mutex_);
    return machine_locked();
}

Refusal Driver::machine_locked() {
    if (owned_) return {};
    if (version().refused) return version().refused;
    if (auto trouble = settings().trouble()) return trouble;
    auto opened = Context::open();
    if (!opened) {
        Refusal refused = refusal_of(opened.error());
        refused.code = CU_FILE_DRIVER_NOT_INITIALIZED;
        return refused;
    }
    owned_.emplace(std::move(*opened));
    watch_forks();
    context_.store(&*owned_, std::memory_order_release);
    Statistics::get();  // counts from here on, where the settings want that
    return {};
}

Refusal Driver::open_locked() {
    if (auto refused = machine_locked()) return refused;
    closed_.store(false, std::memory_order_release);
    uses_.fetch_add(1, std::memory_order_acq_rel);
    return {};
}

Refusal Driver::close() {
    const std::lock_guard guard(mutex_);
    if (uses() == 0) return refusal(CU_FILE_DRIVER_NOT_INITIALIZED, "the driver is not open");
    if (uses_.fetch_sub(1, std::memory_order_acq_rel) > 1) return {};
    closed_.store(true, std::memory_order_release);
    Files::get().clear();
    Buffers::get().clear();
    Streams::get().clear();
    return {};
}

}  // namespace sidestep::cufile
