// GPUs that the suite of this folder runs on: emulated ones in tests/unit/host, and any others whose program
// defines make_rig().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/backend.hpp"

namespace sidestep::collective_seat {

class Rig {
public:
    virtual ~Rig() = default;
    virtual backend::Backend& backend() = 0;
    virtual void write(void* gpu, const void* host, std::size_t bytes) = 0;
    virtual void read(void* host, const void* gpu, std::size_t bytes) = 0;
    // Each byte the same; whether they are those at `host`.
    virtual void fill(void* gpu, char byte, std::size_t bytes) {
        const std::vector<char> all(bytes, byte);
        write(gpu, all.data(), bytes);
    }
    virtual bool holds(const void* gpu, const void* host, std::size_t bytes) {
        std::vector<char> now(bytes);
        read(now.data(), gpu, bytes);
        return bytes == 0 || std::memcmp(now.data(), host, bytes) == 0;
    }
    // A word, whole, also while tasks look at it.
    virtual void poke(void* gpu, std::uint64_t value) = 0;
    // As if so many tasks had gone before, on an idle seat. False: cannot be done here, and the test is
    // skipped.
    virtual bool start_counters_at(backend::Seat& seat, std::uint64_t count) = 0;
    // Where a rank sits, and the stream that its tasks go to.
    virtual Place place(unsigned rank) { return Place::gpu(static_cast<int>(rank)); }
    virtual void* stream(unsigned) { return nullptr; }
    // Whether a process may open what it shared itself.
    virtual bool opens_what_it_shares() { return true; }
};

// With gpu:0 to gpu:`gpus`-1; null where there are not as many.
std::unique_ptr<Rig> make_rig(unsigned gpus);

}  // namespace sidestep::collective_seat
