// How communicators come into being: joined, split off, shrunk. Each may wait for other ranks.
#pragma once

#include "shims/nccl/abi.h"
#include "shims/nccl/communicator.hpp"

namespace sidestep::nccl {

// A new id in NCCL's 128 bytes, and back. ErrorCode::invalid_argument for one that another library made.
Result<ncclUniqueId> make_unique_id();
ncclUniqueId unique_id_of(const GroupId& id);
Result<GroupId> parse_unique_id(const ncclUniqueId& id);

// Where a new communicator's handle goes. Null again where a blocking call fails.
struct Joining {
    ncclComm_t* into = nullptr;
    GroupId id;
    int ranks = 1;
    int rank = 0;
    Config config;
};
Result<ncclResult_t> join(const Joining& joining, const Gpu& device);

Result<ncclResult_t> split(std::shared_ptr<Communicator> parent, int color, int key, ncclComm_t* into,
                           const Config& config);
Result<ncclResult_t> shrink(std::shared_ptr<Communicator> parent, std::vector<int> excluded, bool abort_first,
                            ncclComm_t* into, const Config& config);
Result<ncclResult_t> finalize(std::shared_ptr<Communicator> communicator);

}  // namespace sidestep::nccl
