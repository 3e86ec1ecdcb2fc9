// A link whose bytes carry checksums.
#pragma once

#include <memory>
#include <string_view>

#include "backend/network.hpp"

namespace sidestep::wire {

// A link of the engine. `checked`: what is pushed over it carries an XXH3-64 of its frame and bytes, in the frame's `target`, and
// what comes with one is compared before its owner sees it. Bytes that differ end the link with mismatch: nobody has confirmed
// them, so that the session sends them once more over its next link. Both ends are to be checked, or neither.
std::shared_ptr<backend::Link> make_link(backend::NetworkEngine& engine,
                                         std::weak_ptr<backend::LinkOwner> owner, bool checked);
// Why memory of GPUs does not go over it as it is, where its engine could: for people. Empty: that is not why.
std::string_view why_never_direct(const backend::Link& link);

}  // namespace sidestep::wire
