// What a Context needs to reach other machines.
#pragma once

#include <memory>

#include <sidestep/context.hpp>
#include "base/environment.hpp"
#include "wire/remote_backend.hpp"

namespace sidestep::context {

// invalid_argument for lists of nodes that cannot be read. Asks no node.
Result<std::unique_ptr<wire::RemoteBackend>> remote_backend(const ContextOptions& options,
                                                            const base::Environment& environment,
                                                            const Topology& topology);

}  // namespace sidestep::context
