// A node: what listens, takes clients in, and lets them go.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver/event_loop.hpp"
#include "wire/address.hpp"
#include "wire/data_hello.hpp"
#include "wire/engines.hpp"
#include "wire/probes.hpp"
#include "wire/served.hpp"

namespace sidestep::wire {

struct ServerOptions {
    std::vector<HostPort> listen{{"127.0.0.1", default_port}};  // port 0: any that is free
    Allowances allowed;
    std::string key;
    std::string node;  // what clients are told that it is called
    std::size_t most_clients = 4096;
    Teller teller = {};  // null: the node tells nothing of itself
    std::size_t most_notices = 0;
    Bytes rate = 0;  // bytes a second each way, of all clients together; 0: no bound
};

// Any thread. Nothing of it blocks for a client: whoever sends slowly, or not at all, is hung up on in time.
class Server {
public:
    // How long a connection may take until it is known who it is, and how many there may be of which nobody knows.
    static constexpr std::chrono::milliseconds patience{5000};
    // A quarter of the descriptors that the process may have, where that is less.
    static constexpr std::size_t most_newcomers = 1024;
    // How long what a client has is kept for it after its connection was lost.
    static constexpr std::chrono::milliseconds kept_for{15'000};

    // The engines outlive the server. Fails where the address cannot be had.
    static Result<std::unique_ptr<Server>> start(const Machine& machine,
                                                 std::shared_ptr<const Engines> engines,
                                                 ServerOptions options);
    // Hangs up on all clients.
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    const std::vector<HostPort>& addresses() const { return addresses_; }
    std::size_t clients() const;
    // Bytes that have come from clients, and gone to them, in all.
    Bytes received() const;
    Bytes sent() const;
    Notices& notices() const { return *node_->notices; }
    // All it has counted, as Prometheus reads it.
    std::string metrics() const;

private:
    // A connection of which it is not known yet who it is.
    struct Newcomer {
        driver::TcpSocket socket;
        std::string from;
        std::chrono::steady_clock::time_point since;
        driver::EventLoop::Id watch = 0;
        std::string came{};  // of a data socket: its hello, then its code
        std::string
            nonce{};  // ours, once its hello has come, with what it said and the code that it has to answer
        std::uint64_t session = 0;
        std::string expected{};
        DataKind kind = DataKind::link;
        backend::SocketKeys keys{};
    };
    // A control connection, and whose it is: another's than at first, where its client was here before.
    struct Visit {
        std::atomic<std::uint64_t> client{0};
        bool greeted = false;  // the loop's thread alone
    };
    struct Client {
        std::shared_ptr<Served> served;
        std::shared_ptr<Channel> channel{};  // null: it was lost
        std::shared_ptr<Visit> visit{};
        bool leaves = false;  // it has said so
        std::chrono::steady_clock::time_point lost{};
    };

    Server(const Machine& machine, std::shared_ptr<const Engines> engines, ServerOptions options);
    Result<void> listen();
    void accept(const driver::TcpListener& listener);
    void look_at(std::uint64_t newcomer);
    Result<void> answer_data(Newcomer& newcomer);
    void enter_client(std::uint64_t newcomer);
    void enter_data(std::uint64_t newcomer);
    void enter_probe(Newcomer& newcomer);
    void drop(std::uint64_t newcomer);
    // How many there are of whom nobody knows who they are.
    std::size_t strangers();
    // Hangs up on the one of them that has been here longest: those who mean it need a moment only. False where there is none.
    bool drop_stranger();
    bool drop_silent_client();
    void tick();
    // Clients (server_clients.cpp).
    void heard(const std::shared_ptr<Visit>& visit, const std::string& message);
    // What carries that client's session; null where it has no engine that is here too.
    backend::NetworkEngine* engine_for(const Hello& theirs) const;
    base::Workers::Task welcome(const std::shared_ptr<Visit>& visit, const Client& client,
                                const Envelope& question);
    base::Workers::Task welcome_again(const std::shared_ptr<Visit>& visit, const Client& fresh,
                                      const Hello& theirs, const Envelope& question,
                                      backend::NetworkEngine& engine);
    void gone(const std::shared_ptr<Visit>& visit, const Error& why);
    // With the mutex held: off the list, but for what it has moved.
    Client take_off(std::map<std::uint64_t, Client>::iterator one);
    void forget(Client client, const Error& why);
    void look_after_clients();
    std::optional<Client> find(const std::shared_ptr<Visit>& visit) const;
    std::shared_ptr<Served> find(std::uint64_t client) const;

    const std::shared_ptr<const Engines> engines_;
    const ServerOptions options_;
    const std::shared_ptr<Node> node_;
    std::vector<HostPort> addresses_;
    std::vector<driver::TcpListener> listeners_;
    std::uint64_t next_ = 1;  // the loop's thread alone, as the next two
    std::map<std::uint64_t, std::unique_ptr<Newcomer>> newcomers_;
    // Of clients that had not shown the key when this was looked at last.
    std::map<std::uint64_t, std::weak_ptr<Channel>> unknown_;
    const std::size_t most_now_;
    std::vector<driver::EventLoop::Id> watches_;  // of the listeners
    bool full_ = false;                           // no descriptor is left: they wait

    mutable std::mutex mutex_;  // guards what follows
    std::map<std::uint64_t, Client> clients_;
    Bytes received_before_ = 0;  // of clients that are gone
    Bytes sent_before_ = 0;

    Probes probes_{Probes::Limits{}};
    base::Workers workers_;   // for what may block
    base::Workers files_;     // for what a file system may take any time for
    base::Workers reaching_;  // for what waits for another node, which may wait for this one's answer
    base::Workers joining_;   // for sockets that an engine takes
    std::unique_ptr<driver::EventLoop> loop_;
};

}  // namespace sidestep::wire
