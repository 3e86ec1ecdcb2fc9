// What the made-up library remembers of a cuFileRead or cuFileWrite that reached it.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace sidestep::fake_cufile {

struct TakenCall {
    bool write = false;
    const void* base = nullptr;
    std::size_t size = 0;
    off_t file_offset = 0, base_offset = 0;
};

}  // namespace sidestep::fake_cufile
