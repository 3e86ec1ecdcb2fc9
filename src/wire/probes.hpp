// The node's end of plain sockets that a client measures with: what comes is dropped, what goes means nothing. It
// touches no memory but its own, so whoever belongs to a session may have it.
//
// The client says a letter and a number (8 bytes, lowest first) for each thing it wants:
//   d N   sends N bytes, which are dropped; is answered one byte then
//   s N   is sent N bytes
//   e N   N times: sends 8 bytes, is sent them back
// Anything else, or too large a number, ends the connection.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/workers.hpp"
#include "driver/plain_socket.hpp"

namespace sidestep::wire {

namespace probe {
constexpr char drain = 'd';
constexpr char give = 's';
constexpr char echo = 'e';
constexpr std::size_t head_bytes = 1 + 8;
constexpr std::size_t message = 8;
constexpr Bytes most_bytes = Bytes{1} << 40;
constexpr std::uint64_t most_echoes = std::uint64_t{1} << 20;
}  // namespace probe

// Any thread.
class Probes {
public:
    static constexpr std::size_t most = 64;
    static constexpr std::size_t most_of_probe = 16;  // sockets
    static constexpr std::size_t most_of_client = 2 * most_of_probe;
    struct Limits {
        std::chrono::milliseconds idle{10'000};  // a socket on which nothing moves for that long is closed,
        std::chrono::milliseconds longest{120'000};  // and one that has not done by then what was asked
    };

    explicit Probes(Limits limits);
    // Ends all that run.
    ~Probes();
    Probes(const Probes&) = delete;
    Probes& operator=(const Probes&) = delete;

    // Answers what a client asks on it from now on, on a thread of its own. out_of_memory where there are too many; the
    // socket is closed then.
    Result<void> add(std::uint64_t client, driver::TcpSocket socket);
    // The client is gone.
    void drop(std::uint64_t client);
    // None begins after it, and those that run end.
    void end();
    std::size_t count() const;

private:
    void run(std::uint64_t number, const driver::PlainSocket& socket);

    struct One {
        std::uint64_t client = 0;
        std::shared_ptr<const driver::PlainSocket> socket;
    };
    const Limits limits_;
    mutable std::mutex mutex_;  // guards what follows
    std::uint64_t next_ = 1;
    std::map<std::uint64_t, One> running_;
    bool ending_ = false;

    base::Workers workers_;  // last, so that its threads end before all else goes
};

}  // namespace sidestep::wire
