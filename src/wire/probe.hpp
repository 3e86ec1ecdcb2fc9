// Plain sockets to a node, for comparison: loops of send and recv, a thread for each socket.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "driver/plain_socket.hpp"
#include "wire/peer.hpp"
#include "wire/probe_loop.hpp"

namespace sidestep::wire {

// One thread at a time.
class Probe {
public:
    // With so many sockets; 0: as many as a large copy uses.
    static Result<std::unique_ptr<Probe>> open(std::shared_ptr<Peer> peer, std::size_t sockets);

    std::size_t sockets() const { return count_; }
    const Peer& peer() const { return *peer_; }

    // Seconds until the node has taken that many bytes, or this machine has. They are divided among the sockets.
    Result<double> send(Bytes bytes);
    Result<double> receive(Bytes bytes);
    // Seconds of so many round trips of 8 bytes, one after the other, over one socket.
    Result<double> echo(std::uint64_t count);

private:
    using Clock = std::chrono::steady_clock;
    struct Line {
        driver::PlainSocket socket;
        ProbeLoop loop;
    };

    Probe(std::shared_ptr<Peer> peer, std::size_t count) : peer_(std::move(peer)), count_(count) {}
    // The node closes sockets on which nothing moves; those are opened again.
    Result<void> make_ready();
    Result<double> all(char what, Bytes bytes);

    const std::shared_ptr<Peer> peer_;
    const std::size_t count_;
    std::vector<Line> lines_;
    Clock::time_point used_;
};

}  // namespace sidestep::wire
