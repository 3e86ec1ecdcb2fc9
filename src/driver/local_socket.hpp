// Sockets between processes of one machine. A message arrives whole or not at all, and may carry a
// descriptor.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sidestep/result.hpp>
#include "driver/event_fd.hpp"
#include "driver/fd.hpp"

namespace sidestep::driver {

// Who is at the other end, as the kernel saw it when the connection was made.
struct PeerCredentials {
    unsigned user = 0;
    // In this process's numbering; 0 where it lies in a namespace that is not seen from here.
    int process = 0;
};

struct LocalMessage {
    std::string bytes;
    Fd descriptor;  // empty where none came
    // One came, and this process may open no more; only where receive() was told to go on without.
    bool lost_descriptor = false;
};

// One end of a connection (AF_UNIX, SOCK_SEQPACKET). Never blocks past the time it is given.
class LocalSocket {
public:
    using Time = std::chrono::steady_clock::time_point;

    explicit LocalSocket(Fd fd) : fd_(std::move(fd)) {}

    // ErrorCode::not_found where no process listens at `path` (also where a dead process left the socket
    // file, or only a child that it forked still holds it), timed_out where the listener accepts no
    // connection.
    static Result<LocalSocket> connect(const std::string& path, Time until);

    int number() const { return fd_.get(); }
    Result<PeerCredentials> peer() const;
    // Readable once the process at the other end has ended, whatever its children inherited and whichever namespace it
    // is in (SO_PEERPIDFD, Linux 6.5). unsupported where an older kernel does not show it here, not_found where nothing
    // is left of the process.
    Result<Fd> watch_peer() const;
    // Whether watch_peer() knows by now that it has ended.
    bool peer_ended() const;

    // Sends one message, with `descriptor` unless it is -1. Fails where the other end does not take it at
    // once.
    Result<void> send(std::string_view bytes, int descriptor = -1) const;

    // `none`: this process opens none, not even for a moment; one that comes is an error.
    enum class Descriptor { needed, optional, none };
    // The next message. One of more than `max` bytes, or with more than one descriptor, is an error, and
    // every descriptor that came with it is closed. not_found where the other end hung up, timed_out where
    // nothing came, out_of_memory where its descriptor is `needed` and this process may open no more.
    Result<LocalMessage> receive(std::size_t max, Time until,
                                 Descriptor descriptor = Descriptor::needed) const;

    // Whether the other end hung up, died, or sent something unasked. Costs about 0.15 us.
    bool closed() const;

    // Both ends see the end of the connection from now on. The descriptor stays open until the destructor.
    void shut_down() const;

private:
    Fd fd_;
};

class LocalListener {
public:
    // Takes the path, which must not be there. Only this user may connect.
    static Result<LocalListener> bind(const std::string& path);

    int number() const { return fd_.get(); }
    // The next client; nothing where none waits. Resource errors (too many descriptors) fail.
    Result<std::optional<LocalSocket>> accept() const;
    void shut_down() const;

private:
    explicit LocalListener(Fd fd) : fd_(std::move(fd)) {}
    Fd fd_;
};

// The owner of a path, for a process that wants to listen there; stale: the owner has ended.
enum class SocketPath { absent, stale, live };
// invalid_argument where something lies there that is not a socket.
Result<SocketPath> look_at_socket(const std::string& path);

// Wakes a thread that polls number() for reading, and that clears it then.
class Waker {
public:
    static Result<Waker> create();
    int number() const { return event_.get(); }
    void wake() const { event_.signal(); }
    void clear() const;

private:
    explicit Waker(EventFd event) : event_(std::move(event)) {}
    EventFd event_;
};

// One descriptor that stands for up to 62,500 others, since a message carries few. It keeps them open,
// outside this process's table, and can be opened any number of times. The caller may close the ones it gave.
Result<Fd> bundle_descriptors(std::span<const int> descriptors);

// The descriptors of a bundle, at most `max`, in their order.
Result<std::vector<Fd>> open_bundle(int bundle, std::size_t max);

}  // namespace sidestep::driver
