// The loops of send and recv of both ends of a probe.
#pragma once

#include <chrono>
#include <vector>

#include "driver/plain_socket.hpp"

namespace sidestep::wire {

// The memory that a plain socket sends from and receives into: as large as what it moves, and 16 MiB at most. The
// calls of the kernel go through it from its beginning, and again, so a large amount leaves the processors' caches, as
// that of a copy does. One thread at a time.
class ProbeLoop {
public:
    using Clock = std::chrono::steady_clock;
    static constexpr Bytes block = Bytes{256} << 10;  // of one call of the kernel
    static constexpr Bytes most = Bytes{16} << 20;

    // For that many bytes. The first time takes as long as the kernel needs to hand it out.
    void prepare(Bytes bytes);
    // timed_out where it is not over by then; else as the socket.
    Result<void> send(const driver::PlainSocket& socket, Bytes bytes, Clock::time_point until) const;
    Result<void> receive(const driver::PlainSocket& socket, Bytes bytes, Clock::time_point until);

private:
    std::vector<char> memory_;
};

}  // namespace sidestep::wire
