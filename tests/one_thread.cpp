// Linked to the programs that the thread sanitizer leaves out, since there is nothing for it to see: they end here if it is not so.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

extern "C" int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
    std::fputs("A test of a program marked ONE_THREAD starts a thread: move it to one that is not.\n",
               stderr);
    std::abort();
}
