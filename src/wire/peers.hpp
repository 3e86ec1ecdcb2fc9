// The nodes that this machine is connected to.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "wire/address.hpp"
#include "wire/peer.hpp"

namespace sidestep::wire {

// Connects to a node when it is first asked for, and anew after it was lost. Any thread. Not destroyed on a thread of its
// own, or of the engines.
class Peers {
public:
    // How long a node may take to be connected, and to answer.
    static constexpr std::chrono::milliseconds answer_limit{10'000};
    // A node that has to reach others keeps what it does not need for so long.
    static constexpr std::chrono::milliseconds idle_limit{60'000};
    static Peer::Time in_time() { return std::chrono::steady_clock::now() + answer_limit; }

    // `key` is asked once, when the first node is. `node`: what this machine calls itself. `most`: nodes at a time.
    Peers(std::shared_ptr<const Engines> engines, std::string node, std::function<Result<std::string>()> key,
          std::size_t most)
        : engines_(std::move(engines)), node_(std::move(node)), key_(std::move(key)), most_(most) {}
    // As close().
    ~Peers();
    Peers(const Peers&) = delete;
    Peers& operator=(const Peers&) = delete;

    // The node, connected; one of that name at other addresses is left. out_of_memory where there are too many.
    Result<std::shared_ptr<Peer>> get(const NodeAddress& address);
    // That of that name, connected; null: there is none.
    std::shared_ptr<Peer> find(const std::string& node) const;
    // Ends those that nobody has had for so long; the next get() makes them anew.
    void close_idle(std::chrono::milliseconds limit);
    // Ends all connections; none is made afterwards.
    void close();
    // Whoever waits for something small of any of them takes in what has come.
    void look() const;
    // As Session::go_on_with_slots(), of all.
    void go_on_with_slots() const;

    const Engines& engines() const { return *engines_; }
    // For what asks nodes: connections that were lost do not wait for it, as it may wait for them.
    base::Workers& workers() { return asking_; }

private:
    static constexpr std::size_t most_at_a_time = 16;  // that are connected again, or asked
    struct Entry {
        std::mutex connecting;
        NodeAddress address;            // guarded by Peers::mutex_, as the peer
        std::shared_ptr<Peer> peer;     // null: not yet
        Peer::Time used{};              // last, as far as was seen
        std::optional<Error> failed{};  // the last try; with `connecting` held, as the next
        NodeAddress tried{};            // when it failed
        Peer::Time failed_at{};
    };
    Result<std::shared_ptr<Entry>> entry(const NodeAddress& address);
    std::shared_ptr<Peer> known(Entry& entry, const NodeAddress& address) const;
    Result<const Peer::Tools*> tools();

    const std::shared_ptr<const Engines> engines_;
    const std::string node_;
    const std::function<Result<std::string>()> key_;
    const std::size_t most_;
    std::atomic<bool> used_{
        false};                 // there was a peer: every copy of the machine looks, most machines have none
    mutable std::mutex mutex_;  // guards what follows
    bool closed_ = false;
    std::map<std::string, std::shared_ptr<Entry>> entries_;
    std::vector<std::weak_ptr<Peer>> all_;  // those too that others took the place of, and that memory holds
    base::Workers workers_{{most_at_a_time, 0, 65536, true}, "lost connections to nodes"};
    base::Workers asking_{{most_at_a_time, 0, 65536, true}, "questions to nodes"};
    std::unique_ptr<Peer::Tools> tools_;
    std::unique_ptr<driver::EventLoop> loop_;
};

}  // namespace sidestep::wire
