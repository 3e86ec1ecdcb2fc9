#include "base/owner_process.hpp"

#include <pthread.h>

#include <atomic>
#include <string>

namespace sidestep::base {
namespace {

std::atomic<unsigned> forks{0};  // that lie between the first process with this library and this one

// getpid() would be a system call each time.
unsigned forks_so_far() {
    [[maybe_unused]] static const int watched =
        pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
    return forks.load(std::memory_order_relaxed);
}

}  // namespace

OwnerProcess::OwnerProcess() : forks_(forks_so_far()) {}

bool OwnerProcess::forked() const {
    return forks.load(std::memory_order_relaxed) != forks_;
}

Result<void> OwnerProcess::check(std::string_view what) const {
    if (!forked()) return {};
    return Error{ErrorCode::unsupported,
                 std::string(what) + " belongs to the process that this one was forked from", "fork",
                 "open a Context in the process that uses it"};
}

}  // namespace sidestep::base
