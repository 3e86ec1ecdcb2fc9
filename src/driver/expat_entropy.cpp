// Debian 12's libexpat.a asks the C library for arc4random_buf, which glibc has from 2.36 on. With one of our own a
// binary built there starts on Ubuntu 22.04 (glibc 2.35) too. Linked after expat, so nothing else gets it.
#include <sys/random.h>

#include <cstddef>

extern "C" void arc4random_buf(void* buffer, std::size_t size);

// Fills the buffer from the kernel's random numbers. Expat takes them for the salt of its hash tables, 8 bytes;
// getrandom() gives up to 256 bytes whole once the kernel has started.
extern "C" void arc4random_buf(void* buffer, std::size_t size) {
    auto* at = static_cast<unsigned char*>(buffer);
    while (size > 0) {
        const ssize_t got = ::getrandom(at, size, 0);
        if (got <= 0) continue;  // interrupted
        at += got;
        size -= static_cast<std::size_t>(got);
    }
}
