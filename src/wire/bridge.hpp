// A way from a place of one node to a region of another, past this machine.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "wire/peer.hpp"

namespace sidestep::wire {

// Made when the first bytes are to go over it, by both nodes, who are asked on a thread that may wait. Any thread. Lives in a
// shared_ptr.
class Bridge : public std::enable_shared_from_this<Bridge> {
public:
    // `region` of `to`, with room for `size` bytes (Buffer::whole: nobody knows), as `from` reaches it. `failures` are counted.
    Bridge(std::shared_ptr<Peer> from, std::shared_ptr<Session> session, std::shared_ptr<Peer> to,
           std::uint64_t region, Bytes size, std::shared_ptr<std::atomic<unsigned>> failures)
        : failures_(std::move(failures)),
          from_(std::move(from)),
          session_(std::move(session)),
          to_(std::move(to)),
          region_(region),
          size_(size) {}
    ~Bridge();
    Bridge(const Bridge&) = delete;
    Bridge& operator=(const Bridge&) = delete;

    // Whether `from` reaches `to` at all: what carries the bytes there, or why not.
    static Result<std::string> try_out(Peer& from, Peer& to);

    // Asks both nodes. Once.
    void open();
    // Parts of regions of the first node; where each goes is an offset alone. As Session::pass().
    Result<void> pass(std::vector<Part> parts, Session::Told told);
    // It could not be made, or what went over it failed: the nodes may have lost each other.
    bool failed() const;
    // "nodeA sent them to nodeB itself, by tcp"; empty where nothing went. May ask nodeA.
    std::string note() const;

private:
    struct Waiting {
        std::vector<Part> parts;
        Session::Told told;
    };
    void failed_once();
    static Result<Attached> ask(Peer& from, Peer& to, std::uint64_t region, Bytes size);
    Result<void> send(std::uint64_t target, std::vector<Part> parts, Session::Told told) const {
        for (Part& part : parts) part.target = target;
        return session_->pass(std::move(parts), std::move(told));
    }

    const std::shared_ptr<std::atomic<unsigned>> failures_;
    const std::shared_ptr<Peer> from_;
    const std::shared_ptr<Session> session_;
    const std::shared_ptr<Peer> to_;
    const std::uint64_t region_;
    const Bytes size_;
    mutable std::mutex mutex_;  // guards what follows
    std::optional<Result<Attached>> there_;
    std::deque<Waiting> waiting_;
    bool broken_ = false;
};

}  // namespace sidestep::wire
