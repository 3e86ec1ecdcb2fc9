#include "driver/random.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "driver/fd.hpp"

namespace sidestep::driver {
namespace {

// Calls `more(at, size)`, which answers as read(2) does, until all is there.
template <typename More>
bool fill_with(void* to, std::size_t size, const More& more) {
    auto* at = static_cast<unsigned char*>(to);
    while (size > 0) {
        const ssize_t got = more(at, size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        size -= static_cast<std::size_t>(got);
    }
    return true;
}

}  // namespace

std::uint64_t random_number() {
    std::uint64_t number = 0;
    if (::getrandom(&number, sizeof number, 0) == sizeof number) return number;
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    return static_cast<std::uint64_t>(now) * 2654435761u + static_cast<std::uint64_t>(::getpid());
}

bool fill_random(void* to, std::size_t size) {
    if (fill_with(to, size, [](void* at, std::size_t left) { return ::getrandom(at, left, 0); })) return true;
    const Fd source(::open("/dev/urandom", O_RDONLY | O_CLOEXEC | O_NOCTTY));
    struct stat status {};
    // A file that took the place of the device is no source.
    if (!source || ::fstat(source.get(), &status) != 0 || !S_ISCHR(status.st_mode)) return false;
    return fill_with(to, size, [&](void* at, std::size_t left) { return ::read(source.get(), at, left); });
}

void fill_unknown(void* to, std::size_t size) {
    if (fill_random(to, size)) return;
    for (std::size_t i = 0; i < size; ++i)
        static_cast<unsigned char*>(to)[i] = static_cast<unsigned char>(i % 251);
}

}  // namespace sidestep::driver
