#include "driver/local_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "base/deadlines.hpp"
#include "base/try.hpp"
#include "driver/process.hpp"
#include "driver/system_error.hpp"

namespace sidestep::driver {
namespace {

using Clock = std::chrono::steady_clock;

// Waiting connections that a listener keeps.
constexpr int local_backlog = 128;
// How often a full listener is tried again.
constexpr std::chrono::milliseconds retry_pause{2};
// Room for more descriptors than the one that may come, so that the others are seen, and closed.
constexpr std::size_t max_in_control = 16;

Result<sockaddr_un> address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path))
        return Error{ErrorCode::invalid_argument,
                     fmt::format("a socket's path has at most {} bytes, this one {}",
                                 sizeof(address.sun_path) - 1, path.size()),
                     path, "use a shorter name, or a shorter SIDESTEP_PEER_FOLDER"};
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return address;
}

Result<Fd> make_socket() {
    Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return system_error(errno, "no socket could be made", "socket");
    return fd;
}

// 0, or an errno value.
int try_connect(const Fd& fd, const sockaddr_un& address) {
    return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

Error nobody(const std::string& path, int number) {
    Error error = system_error(number, "nobody listens", path);
    error.code = ErrorCode::not_found;
    return error;
}

// Waits until the socket has something to read or was hung up.
Result<void> await_input(int fd, LocalSocket::Time until) {
    for (;;) {
        pollfd entry{fd, POLLIN, 0};
        const int found = ::poll(&entry, 1, base::milliseconds_left(until));
        if (found > 0) return {};
        if (found < 0 && errno != EINTR) return system_error(errno, "a socket could not be polled", "poll");
        if (Clock::now() >= until)
            return Error{ErrorCode::timed_out, "the other process says nothing", "local socket",
                         "it hangs, or is stopped"};
    }
}

// Takes every descriptor out of a received message.
std::vector<Fd> take_descriptors(msghdr& message) {
    std::vector<Fd> found;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int number = -1;
            std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
            found.emplace_back(number);
        }
    }
    return found;
}

Result<void> send_with(int socket, std::string_view bytes, std::span<const int> descriptors) {
    iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    std::vector<char> control(CMSG_SPACE(descriptors.size_bytes()));
    if (!descriptors.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
        std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
    }
    if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    const int number = errno;
    return system_error(
        number, "a message could not be sent", "sendmsg",
        number == ETOOMANYREFS ? "too many descriptors are under way: raise `ulimit -n`" : "");
}

}  // namespace

Result<LocalSocket> LocalSocket::connect(const std::string& path, Time until) {
    SIDESTEP_TRY(const sockaddr_un address, address_of(path));
    for (;;) {
        SIDESTEP_TRY(Fd fd, make_socket());
        const int number = try_connect(fd, address);
        LocalSocket socket(std::move(fd));
        if (number == 0 && socket.peer_ended()) return nobody(path, ECONNREFUSED);
        if (number == 0) return socket;
        if (number == ENOENT || number == ENOTDIR || number == ECONNREFUSED) return nobody(path, number);
        if (number != EAGAIN && number != EINTR) return system_error(number, "cannot connect", path);
        // So many wait already that the listener takes no more for now.
        if (Clock::now() >= until)
            return Error{ErrorCode::timed_out, "the other process takes no connection", path,
                         "it hangs, or is stopped"};
        std::this_thread::sleep_for(retry_pause);
    }
}

Result<PeerCredentials> LocalSocket::peer() const {
    ucred found{};
    socklen_t size = sizeof(found);
    if (::getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &found, &size) != 0)
        return system_error(errno, "the other process cannot be told", "SO_PEERCRED");
    return PeerCredentials{found.uid, found.pid};
}

Result<Fd> LocalSocket::watch_peer() const {
    constexpr int so_peerpidfd = 77;  // which older headers lack
    int found = -1;
    socklen_t size = sizeof(found);
    if (::getsockopt(fd_.get(), SOL_SOCKET, so_peerpidfd, &found, &size) == 0) return Fd(found);
    // Before Linux 6.16, of a process that its parent has waited for.
    if (errno == EINVAL || errno == ESRCH)
        return system_error(ESRCH, "a process cannot be watched", "SO_PEERPIDFD");
    SIDESTEP_TRY(const PeerCredentials other, peer());
    if (other.process != 0) return watch_process(other.process);
    return Error{
        ErrorCode::unsupported, "a process of a namespace that is not seen from here", "SO_PEERCRED", {}};
}

bool LocalSocket::peer_ended() const {
    const auto watched = watch_peer();
    if (!watched) return watched.error().code == ErrorCode::not_found;
    pollfd entry{watched->get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
}

Result<void> LocalSocket::send(std::string_view bytes, int descriptor) const {
    const std::span<const int> all(&descriptor, descriptor >= 0 ? 1 : 0);
    return send_with(fd_.get(), bytes, all);
}

Result<LocalMessage> LocalSocket::receive(std::size_t max, Time until, Descriptor descriptor) const {
    LocalMessage received;
    received.bytes.resize(max);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(max_in_control * sizeof(int))> control{};
    for (;;) {
        SIDESTEP_CHECK(await_input(fd_.get(), until));
        iovec part{received.bytes.data(), max};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = descriptor == Descriptor::none ? 0 : control.size();
        const ssize_t size = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        // The other end hung up with unread data. The kernel reports that once, before the bytes that the
        // other end had sent.
        if (size < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)) continue;
        if (size < 0) return system_error(errno, "no message could be received", "recvmsg");
        std::vector<Fd> descriptors = take_descriptors(message);
        if (size == 0) return Error{ErrorCode::not_found, "the other process hung up", "local socket", {}};
        if ((message.msg_flags & MSG_TRUNC) != 0)
            return Error{ErrorCode::io_error,
                         fmt::format("a message has more than {} bytes", max),
                         "local socket",
                         {}};
        // One at most is for this process: without room even for that, the room is what lacks.
        const bool cut = (message.msg_flags & MSG_CTRUNC) != 0;
        received.lost_descriptor = cut && descriptors.empty() && descriptor == Descriptor::optional;
        if (descriptors.size() > 1 || (cut && !received.lost_descriptor))
            return Error{descriptors.size() > 1 ? ErrorCode::io_error : ErrorCode::out_of_memory,
                         "a message came with more descriptors than can be taken", "local socket",
                         "if this process has many files open, raise `ulimit -n`"};
        received.bytes.resize(static_cast<std::size_t>(size));
        if (!descriptors.empty()) received.descriptor = std::move(descriptors.front());
        return received;
    }
}

bool LocalSocket::closed() const {
    char byte = 0;
    const ssize_t size = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return size >= 0 || (errno != EAGAIN && errno != EINTR);
}

void LocalSocket::shut_down() const {
    ::shutdown(fd_.get(), SHUT_RDWR);
}

Result<LocalListener> LocalListener::bind(const std::string& path) {
    SIDESTEP_TRY(const sockaddr_un address, address_of(path));
    SIDESTEP_TRY(Fd fd, make_socket());
    // Before bind(), since the file takes over the mode of the socket.
    ::fchmod(fd.get(), S_IRUSR | S_IWUSR);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
        return system_error(errno, "cannot listen", path);
    if (::listen(fd.get(), local_backlog) == 0) return LocalListener(std::move(fd));
    const int number = errno;
    ::unlink(path.c_str());
    return system_error(number, "cannot listen", path);
}

Result<std::optional<LocalSocket>> LocalListener::accept() const {
    Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) return std::optional(LocalSocket(std::move(fd)));
    const int number = errno;
    if (number == EMFILE || number == ENFILE || number == ENOBUFS || number == ENOMEM)
        return system_error(number, "a connection cannot be taken", "accept");
    return std::optional<LocalSocket>();
}

void LocalListener::shut_down() const {
    ::shutdown(fd_.get(), SHUT_RDWR);
}

Result<SocketPath> look_at_socket(const std::string& path) {
    SIDESTEP_TRY(const sockaddr_un address, address_of(path));
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) {
        if (errno == ENOENT) return SocketPath::absent;
        return system_error(errno, "cannot look at a name", path);
    }
    if (!S_ISSOCK(status.st_mode))
        return Error{ErrorCode::invalid_argument, "something that is not a socket lies there", path,
                     "remove it, or publish under another name"};
    SIDESTEP_TRY(Fd fd, make_socket());
    const int number = try_connect(fd, address);
    if (number == 0) return LocalSocket(std::move(fd)).peer_ended() ? SocketPath::stale : SocketPath::live;
    if (number == EAGAIN) return SocketPath::live;
    if (number == ECONNREFUSED) return SocketPath::stale;
    if (number == ENOENT) return SocketPath::absent;
    return system_error(number, "cannot look at a name", path);
}

Result<Waker> Waker::create() {
    SIDESTEP_TRY(EventFd event, EventFd::create());
    return Waker(std::move(event));
}

void Waker::clear() const {
    std::uint64_t count = 0;
    (void)!::read(event_.get(), &count, sizeof(count));
}

}  // namespace sidestep::driver
