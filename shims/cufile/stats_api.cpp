// The exported functions about statistics. Not there yet: refused.
#include "shims/cufile/failure.hpp"

using namespace sidestep::cufile;

namespace {

CUfileError_t unsupported(const char* call) {
    return answer(call, [] { return refusal(CU_FILE_IO_NOT_SUPPORTED, "statistics are not supported"); });
}

}  // namespace

extern "C" {

CUfileError_t cuFileSetStatsLevel(int) {
    return unsupported("cuFileSetStatsLevel");
}
CUfileError_t cuFileGetStatsLevel(int*) {
    return unsupported("cuFileGetStatsLevel");
}
CUfileError_t cuFileStatsStart(void) {
    return unsupported("cuFileStatsStart");
}
CUfileError_t cuFileStatsStop(void) {
    return unsupported("cuFileStatsStop");
}
CUfileError_t cuFileStatsReset(void) {
    return unsupported("cuFileStatsReset");
}
CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t*) {
    return unsupported("cuFileGetStatsL1");
}
CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t*) {
    return unsupported("cuFileGetStatsL2");
}
CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t*) {
    return unsupported("cuFileGetStatsL3");
}
}
