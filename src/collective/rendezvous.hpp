// How the ranks of a group find each other: every rank listens on a socket named after the group and its
// rank, and connects to those of all lower ranks, in whatever order the processes start.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <sidestep/collective.hpp>
#include "collective/wire.hpp"
#include "driver/local_socket.hpp"
#include "peer/folder.hpp"

namespace sidestep::collective {

// Another rank, and the connection to it.
struct Contact {
    driver::LocalSocket socket{driver::Fd()};
    Hello hello;
    int process = 0;  // in this process's numbering, else what the rank said
    bool same_process = false;
    bool ready = false;     // said that it is, and no arena of its own after that
    bool closed = false;    // it has hung up
    bool failed = false;    // it cannot go on: errors since then are its own, or of whom it names
    driver::Fd descriptor;  // came with the hello: the board, from rank 0
    std::deque<driver::LocalMessage> early;  // what it said before anybody asked

    // Keeps what it has said by now. An error where it refuses, has failed or has hung up, but not after it
    // was ready: then it had joined, and what became of it concerns the group.
    Result<void> listen();
    // Where the other end is gone the error is what it said last, or that it is.
    Result<void> send(std::string_view bytes, int descriptor = -1);
    // "rank 2 (process 4711, gpu:2)".
    std::string who() const;
    // What came from it is none of the messages that there are.
    Error nonsense(const Error& what) const;
};
using Contacts = std::vector<std::optional<Contact>>;  // by rank; nothing for the own one

// The next message of `rank` within the time. An error as soon as any rank refuses or has failed; cancelled,
// saying that `me` was, soon after `stop` is asked for.
Result<driver::LocalMessage> next_message(Contacts& contacts, std::uint32_t rank,
                                          driver::LocalSocket::Time until, const std::stop_token& stop,
                                          const std::string& me);

// What the others hear of a failure that is a rank's own: who it was, as an io_error. To them the rank has
// failed, whatever was wrong with it.
Error failure_of(const std::string& who, const std::string& why);

std::string name_of(std::uint32_t rank, std::uint32_t process, const std::string& place);

class Rendezvous {
public:
    // Listens as `rank`. A socket that a dead process left behind is replaced; invalid_argument where
    // somebody alive has the rank, who is told so too.
    static Result<Rendezvous> open(const peer::Folder& folder, const GroupId& id, const Hello& mine,
                                   driver::LocalSocket::Time until);
    Rendezvous(Rendezvous&& other) noexcept;
    Rendezvous& operator=(Rendezvous&&) = delete;
    ~Rendezvous();

    // One contact for each rank, and nothing for this rank itself. `descriptor` (-1: none) is sent with
    // every hello. Returns when all ranks are there. Otherwise, and also after a stop request, reports
    // the failure here and to every rank that has come. For errors that only this rank could find, use
    // refuse(). `coming` (null: nothing is known) says whether those who are missing still may come.
    Result<Contacts> meet(const Hello& mine, int descriptor, driver::LocalSocket::Time until,
                          const std::stop_token& stop, const std::function<Result<void>()>& coming);

    // This rank cannot take part: waits two seconds at most until every other rank has heard why.
    void refuse(const Hello& mine, const Error& why, driver::LocalSocket::Time until,
                const std::stop_token& stop);

private:
    struct Meeting;
    Rendezvous(driver::LocalListener listener, std::string prefix, std::string path)
        : listener_(std::move(listener)), prefix_(std::move(prefix)), path_(std::move(path)) {}

    driver::LocalListener listener_;
    std::string prefix_;  // of the sockets of all ranks
    std::string path_;    // of the own one; empty once moved from
};

// The prefix of everything in the folder that belongs to a group.
std::string group_path(const peer::Folder& folder, const GroupId& id);

}  // namespace sidestep::collective
