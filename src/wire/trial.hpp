// Whether an engine brings the bytes that it is given, before anything of a copy goes over it.
#pragma once

#include <string_view>

#include "wire/peer.hpp"

namespace sidestep::wire {

// Sends bytes nobody knew before to memory that the node lends for it, brings them back, and compares. mismatch where others
// came; as the connection fails.
Result<void> try_out(Peer& peer, Session& session, const Engines& engines, Peer::Time until);

// What the node lends for it: as much as goes over a link in one of its larger frames.
constexpr Bytes trial_bytes = Bytes{256} << 10;

}  // namespace sidestep::wire
