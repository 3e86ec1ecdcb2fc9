// The exported functions that prepare communication from within a program's own kernels, and NCCL's words for
// subsets of ranks. The former need NCCL's device code, which is compiled into the program against NCCL's own
// structures.
#include "shims/nccl/exported.hpp"
#include "shims/nccl/failure.hpp"
#include "shims/nccl/handles.hpp"

using namespace sidestep;
using namespace sidestep::nccl;

namespace {

ncclResult_t refuse(const char* name, void** pointer = nullptr) noexcept {
    if (pointer != nullptr) *pointer = nullptr;
    return answer(name, []() -> Result<ncclResult_t> {
        return misuse(
            "communication from within kernels (NCCL's device API) is not supported by this library",
            "the program needs NVIDIA's libnccl.so.2 for it");
    });
}

// All ranks are on one machine and reach each other's memory: the world is one team of load and store, and
// each rank has a rail for itself.
ncclTeam_t team(const char* name, ncclComm_t comm, bool alone) noexcept {
    ncclTeam_t made{0, 0, 0};
    answer(name, [&]() -> Result<ncclResult_t> {
        const auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        const int ranks = (*communicator)->ranks();
        made = alone ? ncclTeam_t{1, 0, ranks} : ncclTeam_t{ranks, (*communicator)->rank(), 1};
        return ncclSuccess;
    });
    return made;
}

// The rank in the world that is rank `rank` of a team to which the communicator's own rank belongs. -1: not a
// communicator.
int world_rank(const char* name, ncclComm_t comm, ncclTeam_t of, int rank) noexcept {
    int found = -1;
    answer(name, [&]() -> Result<ncclResult_t> {
        const auto communicator = find(comm);
        if (!communicator.ok()) return communicator.error();
        found = (*communicator)->rank() + (rank - of.rank) * of.stride;
        return ncclSuccess;
    });
    return found;
}

}  // namespace

extern "C" {

ncclResult_t pncclDevCommCreate(ncclComm_t, const void*, void*) {
    return refuse("ncclDevCommCreate");
}
SIDESTEP_NCCL_ALSO(DevCommCreate);

ncclResult_t pncclDevCommDestroy(ncclComm_t, const void*) {
    return refuse("ncclDevCommDestroy");
}
SIDESTEP_NCCL_ALSO(DevCommDestroy);

ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t, int, void*, void*) {
    return refuse("ncclLsaBarrierCreateRequirement");
}
SIDESTEP_NCCL_ALSO(LsaBarrierCreateRequirement);

ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t, ncclTeam_t, int, void*, void*) {
    return refuse("ncclGinBarrierCreateRequirement");
}
SIDESTEP_NCCL_ALSO(GinBarrierCreateRequirement);

int pncclLLA2ACalcSlots(int, int) {
    refuse("ncclLLA2ACalcSlots");
    return 0;
}
SIDESTEP_NCCL_ALSO(LLA2ACalcSlots);

ncclResult_t pncclLLA2ACreateRequirement(int, int, void*, void*) {
    return refuse("ncclLLA2ACreateRequirement");
}
SIDESTEP_NCCL_ALSO(LLA2ACreateRequirement);

ncclTeam_t pncclTeamWorld(ncclComm_t comm) {
    return team("ncclTeamWorld", comm, false);
}
SIDESTEP_NCCL_ALSO(TeamWorld);

ncclTeam_t pncclTeamLsa(ncclComm_t comm) {
    return team("ncclTeamLsa", comm, false);
}
SIDESTEP_NCCL_ALSO(TeamLsa);

ncclTeam_t pncclTeamRail(ncclComm_t comm) {
    return team("ncclTeamRail", comm, true);
}
SIDESTEP_NCCL_ALSO(TeamRail);

int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t of, int rank) {
    return world_rank("ncclTeamRankToWorld", comm, of, rank);
}
SIDESTEP_NCCL_ALSO(TeamRankToWorld);

int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t of, int rank) {
    return world_rank("ncclTeamRankToLsa", comm, of, rank);
}
SIDESTEP_NCCL_ALSO(TeamRankToLsa);

// From later versions. The requested address is null.

ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t, size_t, int, void** pointer) {
    return refuse("ncclGetLsaDevicePointer", pointer);
}
SIDESTEP_NCCL_ALSO(GetLsaDevicePointer);

ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t, size_t, void** pointer) {
    return refuse("ncclGetLsaMultimemDevicePointer", pointer);
}
SIDESTEP_NCCL_ALSO(GetLsaMultimemDevicePointer);

ncclResult_t pncclGetMultimemDevicePointer(ncclWindow_t, size_t, void*, void** pointer) {
    return refuse("ncclGetMultimemDevicePointer", pointer);
}
SIDESTEP_NCCL_ALSO(GetMultimemDevicePointer);

ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t, size_t, int, void** pointer) {
    return refuse("ncclGetPeerDevicePointer", pointer);
}
SIDESTEP_NCCL_ALSO(GetPeerDevicePointer);

ncclResult_t pncclGinInboxA2ACreateRequirement(ncclTeam_t, int, int, void*, void*) {
    return refuse("ncclGinInboxA2ACreateRequirement");
}
SIDESTEP_NCCL_ALSO(GinInboxA2ACreateRequirement);

ncclResult_t pncclGinOutboxCreateRequirement(int, int, void*, void*) {
    return refuse("ncclGinOutboxCreateRequirement");
}
SIDESTEP_NCCL_ALSO(GinOutboxCreateRequirement);

ncclResult_t pncclGetMultimemDeviceLeInfo(ncclWindow_t, size_t, void*, size_t*) {
    return refuse("ncclGetMultimemDeviceLeInfo");
}
SIDESTEP_NCCL_ALSO(GetMultimemDeviceLeInfo);

ncclResult_t pncclGetCftDeviceLeInfo(ncclWindow_t, size_t, int, ncclTeam_t, void*, size_t*) {
    return refuse("ncclGetCftDeviceLeInfo");
}
SIDESTEP_NCCL_ALSO(GetCftDeviceLeInfo);

ncclResult_t pncclGetPeerDeviceLeInfo(ncclWindow_t, size_t, int, void*, size_t*) {
    return refuse("ncclGetPeerDeviceLeInfo");
}
SIDESTEP_NCCL_ALSO(GetPeerDeviceLeInfo);

// Teams of no ranks.
ncclTeam_t pncclTeamCft(ncclComm_t, int) {
    refuse("ncclTeamCft");
    return {0, 0, 0};
}
SIDESTEP_NCCL_ALSO(TeamCft);

ncclTeam_t pncclTeamCftMultimem(ncclComm_t) {
    refuse("ncclTeamCftMultimem");
    return {0, 0, 0};
}
SIDESTEP_NCCL_ALSO(TeamCftMultimem);
}
