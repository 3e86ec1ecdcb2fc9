// One client of this node: what it has here, and the answers to what it asks.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "backend/network.hpp"
#include "base/workers.hpp"
#include "transfer/engine.hpp"
#include "transfer/shared_memory.hpp"
#include "wire/allowance.hpp"
#include "wire/channel.hpp"
#include "wire/counters.hpp"
#include "wire/engines.hpp"
#include "wire/lent.hpp"
#include "wire/messages.hpp"
#include "wire/notices.hpp"
#include "wire/pieces.hpp"
#include "wire/session.hpp"
#include "wire/telling.hpp"

namespace sidestep::wire {

class Peer;
class Peers;

// What this machine serves with, and who has it: kept as long as the server, and calls that hang at its end.
struct Machine {
    const Topology& topology;
    const backend::Registry& registry;
    transfer::Engine& engine;
    transfer::SharedMemory& shared;
    std::shared_ptr<const void> owner;
};

// Memory that clients of a node hold, by the entry that allows it.
class Accounts {
public:
    // Takes the bytes, or says why not (Allowances::memory).
    Result<void> take(const Allowances& allowed, const Place& place, Bytes bytes);
    void give_back(const Allowances& allowed, const Place& place, Bytes bytes);

private:
    std::mutex mutex_;
    std::map<std::string, Bytes> held_;
};

// What all clients of a node share.
struct Node {
    const Machine machine;
    const Allowances allowed;
    const std::string name;
    std::shared_ptr<const driver::Tls> tls;
    Accounts accounts{};
    const std::shared_ptr<Pieces> pieces;
    std::mutex mutex{};
    // Kept until nothing is in flight in them: a session may end before.
    std::vector<std::shared_ptr<Slots>> slots{};
    const std::shared_ptr<Counters> counters = std::make_shared<Counters>();
    // Makes memory ready for them; on threads that answer questions.
    const std::weak_ptr<const Engines> tools{};
    const Teller teller{};  // what the machine is made of; on threads that answer questions
    const std::shared_ptr<Notices> notices{};
    const std::shared_ptr<Pace> pace{};  // of all clients together; null: none
    std::vector<std::shared_ptr<const void>> prepare(void* address, Bytes size) const {
        const auto there = tools.lock();
        return there ? there->prepare(address, size) : std::vector<std::shared_ptr<const void>>();
    }
    // As Slots::move_those_due(), of all.
    void move_those_due() {
        std::unique_lock lock(mutex);
        const auto all = slots;
        lock.unlock();
        for (const auto& one : all) one->move_those_due();
    }
    // The names of the server's engines that can be used now.
    std::vector<std::string> engines() const {
        const auto there = tools.lock();
        return there ? there->working() : std::vector<std::string>();
    }
    Lent lent{};
    std::shared_ptr<Peers> neighbours{};  // nodes that clients have this one reach
};

// Any thread. Lives in a shared_ptr.
class Served : public std::enable_shared_from_this<Served> {
public:
    // What one client may have at a time.
    static constexpr std::size_t most_regions = 65536;
    static constexpr std::size_t most_allocations = 4096;
    static constexpr std::ptrdiff_t most_trials = 16;  // their memory is in no account

    Served(std::shared_ptr<Node> node, std::uint64_t number, std::string key, std::string from)
        : node_(std::move(node)),
          number_(number),
          key_(std::move(key)),
          from_(std::move(from)),
          session_(std::make_shared<Session>(from_)) {
        session_->outlive_links({});
    }

    // What the client's question, which came at that time, is answered with; none is answered for one that has no number,
    // or that is being answered already: what is asked again, since a connection was lost, is not done again. May block.
    std::optional<std::string> answer(const Envelope& question, std::size_t sockets,
                                      std::chrono::steady_clock::time_point came);

    // Where answers go from now on.
    void talk_over(std::shared_ptr<Channel> channel);
    void send(std::string_view message) const;
    // The client has come again, over another channel, and goes on over a new link: what is to be done for that, and may
    // block. It answers the greeting. Does nothing where this was called again before it was done: that channel is used.
    std::function<void()> come_again(std::shared_ptr<Channel> channel, std::shared_ptr<backend::Link> link,
                                     const Envelope& greeting, std::size_t sockets);
    // It is not through with that.
    bool comes_again() const { return coming_again_.load() > 0; }

    // Before it has answered the greeting.
    void use_engine(backend::NetworkEngine& engine, bool checked, bool encrypted);
    // Its data sockets are.
    bool encrypted() const { return encrypted_.load(); }

    const std::string& key() const { return key_; }
    const std::string& from() const { return from_; }  // "10.0.0.3:51234"
    Session& session() const { return *session_; }
    const std::shared_ptr<Session>& shared_session() const { return session_; }
    // Lets go of all it has. May block.
    void end();

private:
    // A buffer that the client names, as one of this machine.
    struct Found {
        Buffer buffer;
        backend::Description description;
        std::shared_ptr<const void> keeps;
    };
    struct Held {
        std::shared_ptr<Region> region;
        std::shared_ptr<backend::Registration> registration;  // null: host memory, reached as it is
        std::shared_ptr<const Found> found;                   // null: of another machine
        AttachRequest request;
        std::shared_ptr<Peer> beyond{};  // that machine
    };

    Result<void> replace_link(std::shared_ptr<backend::Link> link);
    // Answers that are kept, since it may be that they did not come there.
    static constexpr std::size_t most_answers = 256;

    // False where it was asked before; `known` is its answer then, where there is one.
    bool is_new(const Envelope& question, std::optional<std::string>& known);
    void keep_answer(const Envelope& question, const std::string& answer);
    Result<std::string> act(const Envelope& question, std::size_t sockets);
    Result<std::string> greet(std::string_view body, std::size_t sockets) const;
    Result<std::string> allocate(std::string_view body);
    Result<std::string> free(std::string_view body);
    Result<std::string> describe(std::string_view body);
    Result<std::string> attach(std::string_view body);
    Result<std::string> commit(std::string_view body);
    Result<std::string> report(std::string_view body);
    Result<std::string> detach(std::string_view body);
    Result<std::string> tell(std::string_view body);
    Result<std::string> list(std::string_view body) const;
    Result<std::string> notify(std::string_view body) const;

    Result<Found> find(const Buffer& buffer, Permission permission);
    Result<Found> find_memory(const Buffer& buffer);
    // Over a registration that there is, or, where it is null, one of its own.
    Result<Held> make_ready(std::shared_ptr<const Found> found, const AttachRequest& request,
                            std::string& way, std::shared_ptr<backend::Registration> registration);
    // By the session's engine, where that can: see wire/region_ways.hpp.
    void reach_device(Region& region, const Buffer& memory, backend::Backend& backend, std::string& way);
    Result<std::string> grant(Held held, Attached attached);
    // served_lend.cpp
    Result<std::string> lend(std::string_view body);
    Result<std::string> take(std::string_view body);
    Result<std::string> reach(std::string_view body);
    Result<std::string> trial();
    Result<std::shared_ptr<Slots>> slots(const Place& place, MemoryKind kind, bool in);
    Result<Held> held(std::string_view body);

    const std::shared_ptr<Node> node_;
    const std::uint64_t number_;
    const std::string key_;
    const std::string from_;
    const std::shared_ptr<Session> session_;

    std::atomic<bool> encrypted_{false};
    std::atomic<int> coming_again_{0};
    std::atomic<std::uint64_t> newest_{0};  // of those greetings, which may be carried out in another order
    std::mutex telling_mutex_;              // guards the next; before mutex_
    Telling telling_;
    std::mutex replacing_;      // held while the link is replaced
    mutable std::mutex mutex_;  // guards what follows
    std::shared_ptr<Channel> channel_;
    bool ended_ = false;
    std::map<std::uint64_t, Held> held_;                                 // by region
    std::map<std::uint64_t, std::shared_ptr<const Allocation>> memory_;  // by address
    std::map<std::pair<Place, bool>, std::shared_ptr<Slots>> slots_;
    std::map<std::uint64_t, std::optional<std::string>> answers_;  // by question
    std::deque<std::uint64_t> answered_;                           // in their order
};

}  // namespace sidestep::wire
