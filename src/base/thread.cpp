#include "base/thread.hpp"

#include <atomic>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace sidestep::base {

Result<std::thread> start_thread(std::function<void()> work, std::string where) {
    try {
        return std::thread(std::move(work));
    } catch (const std::system_error& error) {
        return Error{ErrorCode::out_of_memory, fmt::format("no thread could be started: {}", error.what()),
                     std::move(where),
                     "raise the limit of threads (ulimit -u, the control group's pids.max)"};
    }
}

unsigned thread_number() {
    static std::atomic<unsigned> given{0};
    thread_local const unsigned number = given.fetch_add(1, std::memory_order_relaxed);
    return number;
}

}  // namespace sidestep::base
