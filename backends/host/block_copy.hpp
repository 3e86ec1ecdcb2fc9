// Copies one block of memory with one thread.
#pragma once

#include <cstddef>
#include <vector>

namespace sidestep::backends::host {

// As memcpy, but the stores go around the caches: for copies so large that the target would push out
// what is of use, and be pushed out before anybody reads it. The bytes are visible to other threads
// after the usual release and acquire. Plain memcpy on processors other than x86-64.
void copy_around_caches(void* to, const void* from, std::size_t bytes);

// The inner loop of such a copy: `to` is aligned to 64 bytes, `bytes` a multiple of 256.
using Streamer = void (*)(char* to, const char* from, std::size_t bytes);

// The loops that this processor can run, the one that copy_around_caches() uses first. For tests, which try them all.
std::vector<Streamer> streamers();
void copy_around_caches(void* to, const void* from, std::size_t bytes, Streamer stream);

// From which size of a whole copy on copy_around_caches is worth it, when `threads` threads share it:
// one thread's share of the last cache, kept within 1 and 4 MiB.
std::size_t cache_share(int threads);

}  // namespace sidestep::backends::host
