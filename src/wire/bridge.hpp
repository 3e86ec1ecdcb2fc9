// A way from a place of one node to a region of another, past this machine.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backend/backend.hpp"
#include "wire/peer.hpp"

namespace sidestep::wire {

// Made when the first bytes are to go over it, by both nodes, who are asked on a thread that may wait. Any thread. Lives in a
// shared_ptr.
class Bridge : public std::enable_shared_from_this<Bridge> {
public:
    // `region` of `to`, with room for `size` bytes (Buffer::whole: nobody knows), as `from` reaches it.
    Bridge(std::shared_ptr<Peer> from, std::shared_ptr<Session> session, std::shared_ptr<Peer> to,
           std::uint64_t region, Bytes size)
        : from_(std::move(from)),
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
    // `from_region` is one of the first node. As Backend::start().
    Result<void> pass(std::uint64_t from_region, Bytes offset, Bytes size, Bytes to_offset,
                      backend::Flight& flight);
    // It could not be made.
    bool failed() const;
    // "nodeA sent them to nodeB itself, by tcp"; empty where nothing went.
    std::string note() const;

private:
    struct Waiting {
        std::uint64_t region;
        Bytes offset;
        Bytes size;
        Bytes to_offset;
        backend::Flight* flight;
    };
    static Result<Attached> ask(Peer& from, Peer& to, std::uint64_t region, Bytes size);
    Result<void> send(std::uint64_t target, const Waiting& one) const {
        return session_->pass(one.region, one.offset, one.size, target, one.to_offset, *one.flight);
    }

    const std::shared_ptr<Peer> from_;
    const std::shared_ptr<Session> session_;
    const std::shared_ptr<Peer> to_;
    const std::uint64_t region_;
    const Bytes size_;
    mutable std::mutex mutex_;  // guards what follows
    std::optional<Result<Attached>> there_;
    std::deque<Waiting> waiting_;
};

}  // namespace sidestep::wire
