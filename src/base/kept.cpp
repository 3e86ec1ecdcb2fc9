#include "base/kept.hpp"

#include <mutex>
#include <utility>
#include <vector>

namespace sidestep::base {

void keep(std::shared_ptr<const void> what) {
    static std::mutex mutex;
    // Not destroyed at the end of the process, and reachable from here for leak checkers.
    static auto* const kept = new std::vector<std::shared_ptr<const void>>;
    const std::lock_guard lock(mutex);
    kept->push_back(std::move(what));
}

}  // namespace sidestep::base
