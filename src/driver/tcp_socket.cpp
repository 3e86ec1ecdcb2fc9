#include "driver/tcp_socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "base/deadlines.hpp"
#include "base/try.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

using Clock = std::chrono::steady_clock;
using Raw = std::vector<unsigned char>;

// Waiting connections that a listener keeps.
constexpr int tcp_backlog = 128;
constexpr std::size_t max_parts = 256;

// Copied, since a vector of bytes is no sockaddr to the compiler.
template <typename Address>
Address copy_of(const Raw& bytes) {
    Address found{};
    if (!bytes.empty()) std::memcpy(&found, bytes.data(), std::min(bytes.size(), sizeof(found)));
    return found;
}

sockaddr_storage storage_of(const Raw& bytes) {
    return copy_of<sockaddr_storage>(bytes);
}

int family_of(const Raw& bytes) {
    return storage_of(bytes).ss_family;
}

Raw raw_of(const sockaddr* address, socklen_t size, std::uint16_t port) {
    sockaddr_storage copy{};
    std::memcpy(&copy, address, std::min<std::size_t>(size, sizeof(copy)));
    if (copy.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(copy).sin_port = htons(port);
    if (copy.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(copy).sin6_port = htons(port);
    const auto* first = reinterpret_cast<const unsigned char*>(&copy);
    return Raw(first, first + size);
}

// getsockname or getpeername.
using NameCall = int (*)(int, sockaddr*, socklen_t*);

Result<Raw> name_of(int socket, NameCall call, const char* where) {
    sockaddr_storage found{};
    socklen_t size = sizeof(found);
    if (call(socket, reinterpret_cast<sockaddr*>(&found), &size) != 0)
        return system_error(errno, "an end of a connection cannot be told", where);
    const auto* first = reinterpret_cast<const unsigned char*>(&found);
    return Raw(first, first + size);
}

Result<Fd> make_socket(const Raw& address) {
    Fd fd(::socket(family_of(address), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd) return fd;
    const int number = errno;
    Error error = system_error(number, "no socket could be made", "socket");
    if (number == EAFNOSUPPORT) error.code = ErrorCode::unsupported;
    return error;
}

// Small messages go out at once. Where that is refused they go later: no reason to fail.
void send_at_once(const Fd& fd) {
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Waits for POLLIN or POLLOUT, or for the end of the connection, which the next call tells. False: the time is over.
Result<bool> await(int socket, short what, TcpSocket::Time until) {
    for (;;) {
        pollfd entry{socket, what, 0};
        const int found = ::poll(&entry, 1, base::milliseconds_left(until));
        if (found > 0) return true;
        if (found < 0 && errno != EINTR) return system_error(errno, "a socket could not be polled", "poll");
        if (Clock::now() >= until) return false;
    }
}

Error not_connected(int number, const std::string& where) {
    Error error = system_error(number, "no connection", where);
    if (number == ECONNREFUSED) {
        error.code = ErrorCode::not_found;
        error.hint = "nobody listens there";
    } else if (number == EHOSTUNREACH || number == ENETUNREACH || number == EHOSTDOWN || number == ENETDOWN ||
               number == EADDRNOTAVAIL) {
        error.code = ErrorCode::io_error;
        error.hint = "no way leads there from this machine";
    } else if (number == ETIMEDOUT) {
        error.code = ErrorCode::timed_out;
    }
    return error;
}

Error nobody_answers(const std::string& where) {
    return Error{ErrorCode::timed_out, "nobody answers", where,
                 "the machine is off or busy, or a firewall drops what is sent there"};
}

// "10.0.0.2:47900", "[::1]:47900".
std::string text_of(const Raw& bytes) {
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> port{};
    const sockaddr_storage address = storage_of(bytes);
    // Numbers alone: asks no resolver.
    const int code =
        ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(bytes.size()),
                      host.data(), host.size(), port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
    if (code != 0) return "nowhere";
    if (address.ss_family == AF_INET6) return fmt::format("[{}]:{}", host.data(), port.data());
    return fmt::format("{}:{}", host.data(), port.data());
}

// Names the other end where the system still knows it: not after a reset.
Error ended(int number, int socket, const char* call) {
    const auto name = name_of(socket, ::getpeername, call);
    return system_error(number, "a connection ended", name ? text_of(*name) : call);
}

Error not_resolved(int code, int number, const std::string& host) {
    if (code == EAI_SYSTEM) return system_error(number, "a host could not be looked up", host);
    return Error{code == EAI_MEMORY ? ErrorCode::out_of_memory : ErrorCode::not_found,
                 fmt::format("no address is known of it: {}", ::gai_strerror(code)), host,
                 "give its number, or a name that this machine's resolver knows (getent hosts NAME)"};
}

Error not_listening(int number, const std::string& where) {
    Error error = system_error(number, "cannot listen", where);
    if (number == EADDRINUSE) {
        error.code = ErrorCode::invalid_argument;
        error.hint = "something listens there already: choose another port";
    } else if (number == EADDRNOTAVAIL) {
        error.code = ErrorCode::unsupported;
        error.hint = "it is no address of this machine";
    } else if (number == EACCES) {
        error.hint = "ports below 1024 are for privileged users";
    }
    return error;
}

}  // namespace

Result<std::vector<SocketAddress>> SocketAddress::resolve(const std::string& host, std::uint16_t port,
                                                          std::chrono::milliseconds limit) {
    // The resolver would see what stands before the zero.
    if (host.find('\0') != std::string::npos) return not_resolved(EAI_NONAME, 0, "a name with a zero in it");
    // A number needs no thread.
    if (limit.count() > 0)
        if (auto number = look_up(host, port, AI_NUMERICHOST)) return number;
    auto found = base::make_within<std::vector<SocketAddress>>(
        limit, host, [host, port] { return look_up(host, port, 0); }, "the resolver has not answered");
    if (found || found.error().code != ErrorCode::timed_out) return found;
    Error error = found.error();
    error.hint = "see whether it does (getent hosts NAME), or give the number";
    return error;
}

Result<std::vector<SocketAddress>> SocketAddress::look_up(const std::string& host, std::uint16_t port,
                                                          int flags) {
    addrinfo wanted{};
    wanted.ai_flags = flags;
    wanted.ai_family = AF_UNSPEC;
    wanted.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const int code = ::getaddrinfo(host.c_str(), nullptr, &wanted, &list);
    if (code != 0) return not_resolved(code, errno, host);
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
    std::vector<SocketAddress> found;
    for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
        if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
        SocketAddress address;
        address.bytes_ = raw_of(entry->ai_addr, entry->ai_addrlen, port);
        found.push_back(std::move(address));
    }
    if (found.empty()) return not_resolved(EAI_NONAME, 0, host);
    return found;
}

std::uint16_t SocketAddress::port() const {
    if (family_of(bytes_) == AF_INET) return ntohs(copy_of<sockaddr_in>(bytes_).sin_port);
    if (family_of(bytes_) == AF_INET6) return ntohs(copy_of<sockaddr_in6>(bytes_).sin6_port);
    return 0;
}

bool SocketAddress::loopback() const {
    constexpr unsigned loopback_net = 127;
    if (family_of(bytes_) == AF_INET)
        return ntohl(copy_of<sockaddr_in>(bytes_).sin_addr.s_addr) >> 24 == loopback_net;
    if (family_of(bytes_) != AF_INET6) return false;
    const in6_addr address = copy_of<sockaddr_in6>(bytes_).sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address)) return address.s6_addr[12] == loopback_net;
    return IN6_IS_ADDR_LOOPBACK(&address);
}

std::string SocketAddress::to_string() const {
    return text_of(bytes_);
}

Result<TcpSocket> TcpSocket::connect(const SocketAddress& to, Time until) {
    TcpConnects one;
    one.begin(to, 0);
    return std::move(one.next(until, true)->socket);
}

void TcpConnects::begin(const SocketAddress& to, std::size_t number) {
    One one{number, to};
    if (auto made = make_socket(to.bytes_)) {
        one.fd = std::move(*made);
        send_at_once(one.fd);
        const auto* address = reinterpret_cast<const sockaddr*>(to.bytes_.data());
        // Interrupted, it goes on by itself.
        if (::connect(one.fd.get(), address, static_cast<socklen_t>(to.bytes_.size())) != 0 &&
            errno != EINPROGRESS && errno != EINTR)
            one.failed = not_connected(errno, to.to_string());
    } else {
        one.failed = made.error();
    }
    all_.push_back(std::move(one));
}

std::optional<TcpConnects::Ended> TcpConnects::next(TcpSocket::Time until, bool give_up) {
    if (all_.empty()) return std::nullopt;
    std::vector<pollfd> entries;
    for (const One& one : all_) entries.push_back({one.fd.get(), POLLOUT, 0});
    auto found = std::find_if(all_.begin(), all_.end(), [](const One& one) { return one.failed; });
    while (found == all_.end()) {
        const int count = ::poll(entries.data(), entries.size(), base::milliseconds_left(until));
        const bool fails = count < 0 && errno != EINTR;
        if (!fails && count <= 0 && Clock::now() < until) continue;
        if (!fails && count <= 0 && !give_up) return std::nullopt;
        const auto ready = std::find_if(entries.begin(), entries.end(),
                                        [](const pollfd& entry) { return entry.revents != 0; });
        found = all_.begin() + (count > 0 ? ready - entries.begin() : 0);
        if (fails) found->failed = system_error(errno, "a socket could not be polled", "poll");
        if (!fails && count <= 0) found->failed = nobody_answers(found->to.to_string());
    }
    One one = std::move(*found);
    all_.erase(found);
    return Ended{one.number, one.to, finished(std::move(one))};
}

Result<TcpSocket> TcpConnects::finished(One one) {
    if (one.failed) return *one.failed;
    int number = 0;
    socklen_t size = sizeof(number);
    if (::getsockopt(one.fd.get(), SOL_SOCKET, SO_ERROR, &number, &size) != 0) number = errno;
    TcpSocket socket(std::move(one.fd));
    // Where nobody listens at a port that the system gives out, it may give just that one to this socket, which then
    // talks to itself.
    const auto here = socket.local();
    if (number == 0 && here && here->bytes_ == one.to.bytes_) number = ECONNREFUSED;
    if (number != 0) return not_connected(number, one.to.to_string());
    return socket;
}

Result<SocketAddress> TcpSocket::local() const {
    SocketAddress found;
    SIDESTEP_TRY(found.bytes_, name_of(fd_.get(), ::getsockname, "getsockname"));
    return found;
}

Result<SocketAddress> TcpSocket::peer() const {
    SocketAddress found;
    SIDESTEP_TRY(found.bytes_, name_of(fd_.get(), ::getpeername, "getpeername"));
    return found;
}

namespace {

// Calls `move` for a message of the parts until no signal interrupts it: what it answers; nothing where it would wait.
template <typename Some, typename Move>
Result<std::optional<Bytes>> with_message(std::span<const Some> parts, int socket, const char* call,
                                          Move&& move) {
    if (parts.size() > max_parts)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} parts of a message, at most {} go at once", parts.size(), max_parts),
                     call,
                     {}};
    std::array<iovec, max_parts> vector;
    for (std::size_t i = 0; i < parts.size(); ++i)
        vector[i] = {const_cast<void*>(static_cast<const void*>(parts[i].data)),
                     static_cast<std::size_t>(parts[i].size)};
    msghdr message{};
    message.msg_iov = vector.data();
    message.msg_iovlen = parts.size();
    for (;;) {
        const ssize_t moved = move(message);
        if (moved >= 0) return std::optional(static_cast<Bytes>(moved));
        if (errno == EAGAIN) return std::optional<Bytes>();
        if (errno != EINTR) return ended(errno, socket, call);
    }
}

}  // namespace

Result<Bytes> TcpSocket::send(std::span<const Part> parts) const {
    SIDESTEP_TRY(const auto sent, with_message(parts, fd_.get(), "sendmsg", [this](const msghdr& message) {
                     return ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
                 }));
    return sent.value_or(0);
}

Result<std::optional<Bytes>> TcpSocket::receive(std::span<const Room> parts) const {
    // The system's answer would look like the end.
    if (std::all_of(parts.begin(), parts.end(), [](const Room& part) { return part.size == 0; }))
        return std::optional<Bytes>();
    return with_message(parts, fd_.get(), "recvmsg",
                        [this](msghdr& message) { return ::recvmsg(fd_.get(), &message, MSG_DONTWAIT); });
}

Result<std::optional<Bytes>> TcpSocket::receive(void* to, Bytes size) const {
    const Room all{to, size};
    return receive({&all, 1});
}

Result<void> TcpSocket::send_all(const void* data, Bytes size, Time until) const {
    const auto* next = static_cast<const unsigned char*>(data);
    for (Bytes left = size; left > 0;) {
        const Part part{next, left};
        SIDESTEP_TRY(const Bytes sent, send(std::span(&part, 1)));
        next += sent;
        left -= sent;
        if (left == 0) break;
        SIDESTEP_TRY(const bool ready, await(fd_.get(), POLLOUT, until));
        // A receiver that takes a little again and again does not move the time.
        if (!ready || Clock::now() >= until)
            return Error{ErrorCode::timed_out,
                         fmt::format("the other end took {} of {} bytes in time", size - left, size),
                         "TCP",
                         {}};
    }
    return {};
}

Result<void> TcpSocket::receive_all(void* to, Bytes size, Time until) const {
    auto* next = static_cast<unsigned char*>(to);
    for (Bytes left = size; left > 0;) {
        SIDESTEP_TRY(const std::optional<Bytes> got, receive(next, left));
        if (got == Bytes{0})
            return Error{ErrorCode::end_of_file,
                         fmt::format("the other end said {} of {} bytes", size - left, size),
                         "TCP",
                         {}};
        next += got.value_or(0);
        left -= got.value_or(0);
        if (left == 0) break;
        SIDESTEP_TRY(const bool ready, await(fd_.get(), POLLIN, until));
        if (!ready || Clock::now() >= until)
            return Error{ErrorCode::timed_out,
                         fmt::format("{} of {} bytes came in time", size - left, size),
                         "TCP",
                         {}};
    }
    return {};
}

std::optional<std::chrono::microseconds> TcpSocket::round_trip() const {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (::getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_rtt == 0)
        return std::nullopt;
    return std::chrono::microseconds(info.tcpi_rtt);
}

std::optional<std::chrono::milliseconds> TcpSocket::unheard() const {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (::getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_unacked == 0)
        return std::nullopt;
    return std::chrono::milliseconds(info.tcpi_last_ack_recv);
}

void TcpSocket::keep_alive(std::chrono::seconds idle) const {
    const int on = 1;
    const int after = static_cast<int>(idle.count());
    const int every = 1;
    const int questions = 5;
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, &after, sizeof(after));
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_KEEPCNT, &questions, sizeof(questions));
}

void TcpSocket::bound_buffers(Bytes bytes) const {
    const int size = static_cast<int>(std::min<Bytes>(bytes, Bytes{1} << 30));
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

void TcpSocket::shut_down() const {
    ::shutdown(fd_.get(), SHUT_RDWR);
}

Result<TcpListener> TcpListener::bind(const SocketAddress& at) {
    const std::string where = at.to_string();
    SIDESTEP_TRY(Fd fd, make_socket(at.bytes_));
    const int on = 1;
    // What an earlier listener's connections leave behind for minutes does not keep the port.
    if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0)
        return not_listening(errno, where);
    // So that 0.0.0.0 and :: can both be listened at, with one port.
    if (family_of(at.bytes_) == AF_INET6 &&
        ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) != 0)
        return not_listening(errno, where);
    const auto* address = reinterpret_cast<const sockaddr*>(at.bytes_.data());
    if (::bind(fd.get(), address, static_cast<socklen_t>(at.bytes_.size())) != 0)
        return not_listening(errno, where);
    if (::listen(fd.get(), tcp_backlog) != 0) return not_listening(errno, where);
    return TcpListener(std::move(fd));
}

Result<SocketAddress> TcpListener::local() const {
    SocketAddress found;
    SIDESTEP_TRY(found.bytes_, name_of(fd_.get(), ::getsockname, "getsockname"));
    return found;
}

Result<std::optional<TcpSocket>> TcpListener::accept() const {
    for (;;) {
        Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd) {
            send_at_once(fd);
            return std::optional(TcpSocket(std::move(fd)));
        }
        const int number = errno;
        // Interrupted, or that client is gone: others may be waiting.
        if (number == EINTR || number == ECONNABORTED) continue;
        if (number != EMFILE && number != ENFILE && number != ENOBUFS && number != ENOMEM)
            return std::optional<TcpSocket>();
        Error error = system_error(number, "a connection cannot be taken", "accept");
        error.code = ErrorCode::out_of_memory;
        return error;
    }
}

}  // namespace sidestep::driver
