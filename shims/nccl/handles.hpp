// The ncclComm_t that callers hold. It outlives its communicator by a few words, so that a call with one that
// was destroyed is an error and not a crash.
#pragma once

#include <memory>
#include <vector>

#include "shims/nccl/communicator.hpp"

namespace sidestep::nccl {

ncclComm_t make_handle(std::shared_ptr<Communicator> communicator);

// The communicator of a handle. ErrorCode::invalid_argument for null, for one that was destroyed, and for
// what is none.
Result<std::shared_ptr<Communicator>> find(ncclComm_t handle);
// The same; the handle is one of a destroyed communicator afterwards.
Result<std::shared_ptr<Communicator>> take(ncclComm_t handle);
bool is_destroyed(ncclComm_t handle);

std::vector<std::shared_ptr<Communicator>> living();

}  // namespace sidestep::nccl
