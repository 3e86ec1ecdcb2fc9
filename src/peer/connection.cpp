#include "peer/connection.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include "base/try.hpp"

namespace sidestep::peer {
namespace {

Error nothing_there(const Folder& folder, const std::string& name, const std::string& why) {
    return Error{ErrorCode::not_found, fmt::format("nothing is published as {}: {}", name, why),
                 folder.path(),
                 "is its process running, and does it use the same folder (SIDESTEP_PEER_FOLDER)?"};
}

}  // namespace

Result<Connection> Connection::open(const Folder& folder, const std::string& name,
                                    driver::LocalSocket::Time until) {
    SIDESTEP_CHECK(check_name(name));
    auto socket = driver::LocalSocket::connect(folder.socket_of(name), until);
    if (!socket && socket.error().code == ErrorCode::not_found)
        return nothing_there(folder, name, socket.error().message);
    if (!socket) return socket.error();
    SIDESTEP_TRY(const auto peer, socket->peer());
    if (peer.user != ::geteuid())
        return Error{ErrorCode::permission_denied,
                     fmt::format("{} is published by user {}, not by {}", name, peer.user, ::geteuid()),
                     folder.path(), "memory is shared among processes of one user"};
    auto message = socket->receive(longest_offer, until);
    if (!message && message.error().code == ErrorCode::not_found)
        return nothing_there(folder, name, message.error().message);
    if (!message) return message.error();
    SIDESTEP_TRY(MemoryOffer offer, parse_offer(message->bytes));
    if (offer.has_descriptor != static_cast<bool>(message->descriptor))
        return Error{ErrorCode::io_error, "the publisher's message lacks its descriptor, or has one too many",
                     name, "if this process has many files open, raise `ulimit -n`"};
    const bool same = peer.process != 0 && peer.process == ::getpid();
    return Connection(std::move(*socket), std::move(offer), std::move(message->descriptor), same);
}

}  // namespace sidestep::peer
