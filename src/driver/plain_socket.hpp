// A TCP connection as the simplest programs have it: each call blocks until it is done.
#pragma once

#include <chrono>

#include <sidestep/result.hpp>
#include <sidestep/units.hpp>
#include "driver/tcp_socket.hpp"

namespace sidestep::driver {

// One thread sends and receives; any other may shut it down. No call goes on once nothing has moved for `idle`.
class PlainSocket {
public:
    static Result<PlainSocket> make(TcpSocket socket, std::chrono::milliseconds idle);

    // All of it. timed_out, io_error; end_of_file where the other end says no more.
    Result<void> send(const void* data, Bytes size) const;
    Result<void> receive(void* to, Bytes size) const;
    // What comes first, at least a byte and at most `size`.
    Result<Bytes> receive_some(void* to, Bytes size) const;
    // A call that waits ends at once, as all later ones; the other end's do at the latest when this is closed.
    void shut_down() const;

private:
    explicit PlainSocket(Fd fd) : fd_(std::move(fd)) {}
    Fd fd_;
};

}  // namespace sidestep::driver
