#include "driver/plain_socket.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <utility>

#include "base/try.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

Error failed(int number, const char* call) {
    // What the time limit of a socket answers.
    if (number == EAGAIN || number == EWOULDBLOCK)
        return Error{ErrorCode::timed_out, "nothing moved on a socket", call, {}};
    return system_error(number, "a connection ended", call);
}

}  // namespace

Result<PlainSocket> PlainSocket::make(TcpSocket socket, std::chrono::milliseconds idle) {
    PlainSocket plain(std::move(socket).take());
    const int fd = plain.fd_.get();
    const int flags = ::fcntl(fd, F_GETFL);
    const timeval limit{static_cast<time_t>(idle.count() / 1000),
                        static_cast<suseconds_t>(idle.count() % 1000 * 1000)};
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0 ||
        ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0 ||
        ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0)
        return system_error(errno, "a socket cannot be made to wait", "socket");
    return plain;
}

Result<void> PlainSocket::send(const void* data, Bytes size) const {
    const auto* next = static_cast<const unsigned char*>(data);
    while (size > 0) {
        const ssize_t sent = ::send(fd_.get(), next, static_cast<std::size_t>(size), MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return failed(errno, "send");
        next += sent;
        size -= static_cast<Bytes>(sent);
    }
    return {};
}

Result<Bytes> PlainSocket::receive_some(void* to, Bytes size) const {
    for (;;) {
        const ssize_t got = ::recv(fd_.get(), to, static_cast<std::size_t>(size), 0);
        if (got > 0) return static_cast<Bytes>(got);
        if (got == 0) return Error{ErrorCode::end_of_file, "the other end hung up", "recv", {}};
        if (errno != EINTR) return failed(errno, "recv");
    }
}

Result<void> PlainSocket::receive(void* to, Bytes size) const {
    auto* next = static_cast<unsigned char*>(to);
    while (size > 0) {
        SIDESTEP_TRY(const Bytes got, receive_some(next, size));
        next += got;
        size -= got;
    }
    return {};
}

void PlainSocket::shut_down() const {
    // A sender whose window is shut would not learn of the end: Linux announces no window on a connection that takes
    // nothing more (tcp_cleanup_rbuf). Closing it says a reset then, as there is nobody who would read what was sent.
    const linger reset{1, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    ::shutdown(fd_.get(), SHUT_RDWR);
}

}  // namespace sidestep::driver
