// The importer's end: connects to a name and hears what is published there.
#pragma once

#include "driver/local_socket.hpp"
#include "peer/folder.hpp"
#include "peer/offer.hpp"

namespace sidestep::peer {

// Open as long as the publication is; constant, so free to be used by several threads.
class Connection {
public:
    // ErrorCode::not_found where nothing is published under the name; timed_out where its process says
    // nothing; permission_denied where it runs as another user.
    static Result<Connection> open(const Folder& folder, const std::string& name,
                                   driver::LocalSocket::Time until);

    const MemoryOffer& offer() const { return offer_; }
    // What came with the offer, -1 for none; closed with the connection.
    int descriptor() const { return descriptor_ ? descriptor_.get() : -1; }
    void close_descriptor() { descriptor_ = {}; }
    // This very process published it.
    bool same_process() const { return same_process_; }
    // Withdrawn, or its process died. Costs about 0.15 us.
    bool closed() const { return socket_.closed(); }
    int number() const { return socket_.number(); }

private:
    Connection(driver::LocalSocket socket, MemoryOffer offer, driver::Fd descriptor, bool same_process)
        : socket_(std::move(socket)),
          offer_(std::move(offer)),
          descriptor_(std::move(descriptor)),
          same_process_(same_process) {}

    driver::LocalSocket socket_;
    MemoryOffer offer_;
    driver::Fd descriptor_;
    bool same_process_;
};

}  // namespace sidestep::peer
