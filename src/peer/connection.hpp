// The importer's end of the one connection to a publisher, by which names are asked for and ends are heard of.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "driver/local_socket.hpp"
#include "peer/offer.hpp"

namespace sidestep::peer {

class Connection;

// What is published under a name.
struct Offered {
    MemoryOffer offer;
    driver::Fd descriptor;  // came with it, or empty
    std::shared_ptr<Connection> connection =
        {};  // lives as long as somebody holds it: says when the offer ends
};

// Any thread may call.
class Connection {
public:
    using Time = driver::LocalSocket::Time;

    // ErrorCode::not_found where no living process listens at `path`, permission_denied where another user's
    // does. `waker` is woken for everything that take_news() reports.
    static Result<std::shared_ptr<Connection>> open(const std::string& path, Time until,
                                                    std::shared_ptr<const driver::Waker> waker);

    // Waits until the publisher has taken this process in; once for each connection. timed_out where it says nothing,
    // out_of_memory where it has no room, not_found where it hangs up.
    Result<void> enter(Time until);
    // What the publisher has under a name; the connection is left out. Errors as those of enter(), not_found also where
    // it has nothing, out_of_memory also where this process has no room for the descriptor.
    Result<Offered> ask(const std::string& name, Time until);

    // The publisher's socket has that file_id(), and it is there as far as it has been heard.
    bool leads_to(const std::string& file_id) const;
    // This very process published it.
    bool same_process() const { return same_process_; }

    // Takes in what the publisher has said by now. Costs about 0.5 us where it has said nothing.
    void listen();
    // Of something that was offered: not withdrawn, and its publisher alive, as far as it has been heard.
    bool lasts(std::uint64_t publication) const;
    bool closed() const;
    // Whether anything has ended since this was asked last.
    bool take_news();

    // What gets readable when there is something to listen to; -1 for the second one where a kernel cannot tell of the
    // other process.
    int number() const { return socket_.number(); }
    int process() const { return process_.get(); }

private:
    Connection(driver::LocalSocket socket, driver::Fd process, bool same_process,
               std::shared_ptr<const driver::Waker> waker)
        : socket_(std::move(socket)),
          process_(std::move(process)),
          same_process_(same_process),
          waker_(std::move(waker)) {
        awaited_[0];
    }

    Result<Offered> await(std::uint64_t question, Time until);
    void hear();
    Result<void> take(driver::LocalMessage received);
    void end(Error why);

    const driver::LocalSocket socket_;
    const driver::Fd
        process_;  // readable once it has ended, though its child may hold the socket's other end
    const bool same_process_;
    const std::shared_ptr<const driver::Waker> waker_;
    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable heard_;
    std::string file_id_;  // of the publisher's socket; empty: it has not said so yet
    std::uint64_t questions_ = 0;
    std::map<std::uint64_t, std::optional<Result<Offered>>> awaited_;  // 0: the welcome, from the beginning
    std::set<std::uint64_t> offered_;                                  // publications that last
    std::optional<Error> end_;
    bool news_ = false;
};

}  // namespace sidestep::peer
