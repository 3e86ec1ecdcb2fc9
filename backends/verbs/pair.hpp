// How a queue pair comes to send and receive: the steps that its two ends take.
#pragma once

#include "backends/verbs/card.hpp"

namespace sidestep::backends::verbs {

// What is posted to receive counts from now on.
Result<void> make_joinable(const driver::VerbsQueuePair& pair, const Card& card);
// Joins it to the pair that `theirs` tells of. `mtu` is one that both ends agreed on.
Result<void> join_pair(const driver::VerbsQueuePair& pair, const Card& card, const Greeting& mine,
                       const Greeting& theirs, std::uint8_t mtu);
// What identifies this end of it. The rest of the greeting is the caller's.
Greeting greeting_of(const driver::VerbsQueuePair& pair, const Card& card);

}  // namespace sidestep::backends::verbs
