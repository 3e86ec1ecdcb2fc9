// Other machines: who listens, and what they let others reach.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sidestep/api.h>
#include <sidestep/result.hpp>
#include <sidestep/units.hpp>

namespace sidestep {

struct ServeOptions {
    // HOST:PORT, an IPv6 number in brackets, several with commas between them: one for each network card that clients may
    // come by; port 0: any that is free. Only programs of this machine reach the default.
    std::string listen = "127.0.0.1:47900";
    // What others may reach, with commas between; nothing else. gpu:0, gpu:*, gpu:0=8GiB, host, host=8GiB: memory that is
    // allocated for whoever asks; file:/data: that file, or what lies below that folder, for reading; file:/out=rw: for
    // writing too; shared:NAME, shared:*: what processes of this user on this machine published.
    std::string allow = {};
    // Empty: the environment's SIDESTEP_KEY_FILE, else ~/.config/sidestep/key. Made where it is not there.
    std::string key_file = {};
    // What clients are told that the machine is called. Empty: its host name.
    std::string name = {};
    // HOST:PORT of a page over HTTP, GET /metrics, with the node's counters, for Prometheus; port 0: any that
    // is free. Anybody who reaches it may read it: without a key, not encrypted. Empty: none.
    std::string metrics = {};
    // Notifications (Context::notify) that wait for Serving::next_notification at most; 0: clients that send one are refused.
    std::size_t notifications = 0;
    // Bytes a second that all clients together move here, and as many from here; what is more waits. 0: no bound.
    Bytes rate = 0;
};

inline constexpr std::size_t longest_notification = 4096;

// What a client said (Context::notify).
struct Notification {
    std::string from;  // its address: "10.0.0.8:51234"
    std::string text;  // any bytes
};

// What a node has done so far.
struct ServeCounts {
    std::size_t clients = 0;  // that are connected
    Bytes received = 0;
    Bytes sent = 0;
};

// Lets others reach this machine for as long as it lives (Context::serve). Move-only; the destructor
// disconnects all clients. Keeps what it needs of the Context alive.
class SIDESTEP_API Serving {
public:
    Serving(Serving&&) noexcept;
    Serving& operator=(Serving&&) noexcept;
    ~Serving();

    // HOST:PORT, one for each address of the name that was to be listened at.
    const std::vector<std::string>& addresses() const;
    // Where the key lies.
    const std::string& key_file() const;
    // What may be reached, one line each.
    const std::vector<std::string>& allowed() const;
    // Any thread.
    ServeCounts counts() const;
    // The text of the page: clients, bytes, questions by outcome and how long they took, who was turned away, in
    // Prometheus' text format 0.0.4. There without ServeOptions::metrics too. Any thread.
    std::string metrics() const;
    // The oldest notification that was not taken yet; waits for one. ErrorCode::timed_out where none comes in
    // that time. Any thread; each notification is answered once.
    Result<Notification> next_notification(std::chrono::milliseconds wait) const;
    // HOST:PORT of the page, one for each address of its name; none where there is no page.
    const std::vector<std::string>& metrics_addresses() const;

private:
    friend class Context;
    struct State;
    explicit Serving(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

// Plain sockets to a node (Context::probe_network): loops of send and recv, a thread for each socket, by which copies
// to it are measured. The bytes mean nothing. Each socket goes through memory of its own at both ends, as much as it
// moves and 16 MiB at most. Move-only; one thread at a time.
class SIDESTEP_API NetworkProbe {
public:
    NetworkProbe(NetworkProbe&&) noexcept;
    NetworkProbe& operator=(NetworkProbe&&) noexcept;
    ~NetworkProbe();

    std::size_t sockets() const;
    // Sockets that copies to the node have open by now.
    std::size_t sockets_of_copies() const;
    // What the node calls itself.
    const std::string& node() const;
    // HOST:PORT where it was reached, in numbers.
    const std::string& address() const;

    // Seconds until the node has taken that many bytes, or this machine has; the sockets share them.
    Result<double> send(Bytes bytes);
    Result<double> receive(Bytes bytes);
    // Seconds of `count` round trips of 8 bytes, one after the other, over one socket.
    Result<double> echo(std::uint64_t count);

private:
    friend class Context;
    struct State;
    explicit NetworkProbe(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace sidestep
