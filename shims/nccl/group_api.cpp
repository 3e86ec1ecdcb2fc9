// The exported functions about groups of calls.
#include <cstddef>

#include "shims/nccl/calls.hpp"
#include "shims/nccl/exported.hpp"
#include "shims/nccl/failure.hpp"

using namespace sidestep;
using namespace sidestep::nccl;

extern "C" {

ncclResult_t pncclGroupStart(void) {
    start_group();
    return ncclSuccess;
}
SIDESTEP_NCCL_ALSO(GroupStart);

ncclResult_t pncclGroupEnd(void) {
    return answer("ncclGroupEnd", [] { return end_group(); });
}
SIDESTEP_NCCL_ALSO(GroupEnd);

ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* info) {
    return answer("ncclGroupSimulateEnd", [&]() -> Result<ncclResult_t> {
        const bool whole =
            info == nullptr || (info->magic == NCCL_SIM_INFO_MAGIC &&
                                info->size >= offsetof(ncclSimInfo_t, estimatedTime) + sizeof(float));
        const auto expected_us = simulate_group();
        if (!expected_us.ok()) return expected_us.error();
        if (!*expected_us) return ncclSuccess;  // of a nested group, as NCCL has it
        if (!whole)
            return bad_argument("the ncclSimInfo_t was not initialised with NCCL_SIM_INFO_INITIALIZER");
        if (info != nullptr) info->estimatedTime = static_cast<float>(**expected_us);
        return ncclSuccess;
    });
}
SIDESTEP_NCCL_ALSO(GroupSimulateEnd);
}
