// The ways to a node, one for each of its addresses.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <vector>

#include "driver/tcp_socket.hpp"
#include "wire/address.hpp"

namespace sidestep::wire {

// Connects over those that work. Any thread.
class Ways {
public:
    using Time = driver::TcpSocket::Time;
    // Where one does not answer for so long, the next is tried beside it.
    static constexpr std::chrono::milliseconds head_start{250};
    // How long the last of several is waited for. Those that do not answer are left for last for a while then.
    static constexpr std::chrono::milliseconds patience{2000};
    static constexpr std::chrono::milliseconds avoided_for{10'000};

    explicit Ways(NodeAddress address);

    struct Reached {
        driver::TcpSocket socket;
        std::size_t way = 0;
    };
    // Over way number `first`, else the next that answers. Where none does: as one failed that might answer later, else
    // not_found, nobody listens there.
    Result<Reached> connect(std::size_t first, Time until);
    // A connection over it was lost.
    void avoid(std::size_t way);

    const NodeAddress& address() const { return address_; }
    // "10.0.0.2:47900": where the way led when it was last connected.
    std::string name(std::size_t way) const;

private:
    struct Way {
        // A name may stand for several machines: the first that answered is meant from then on.
        std::optional<driver::SocketAddress> to;
        Time avoided{};
    };
    std::vector<std::size_t> order(std::size_t first) const;
    Result<std::vector<driver::SocketAddress>> addresses(std::size_t way,
                                                         std::chrono::milliseconds limit) const;
    std::optional<Reached> take(driver::TcpConnects& all, Time until, bool give_up,
                                std::optional<Error>& why);

    const NodeAddress address_;
    mutable std::mutex mutex_;  // guards what follows
    std::vector<Way> ways_;
};

}  // namespace sidestep::wire
