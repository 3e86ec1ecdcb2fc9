// The exported functions about batches. Not there yet: refused.
#include "shims/cufile/failure.hpp"

using namespace sidestep::cufile;

namespace {

CUfileError_t unsupported(const char* call) {
    return answer(call, [] { return refusal(CU_FILE_IO_NOT_SUPPORTED, "batches are not supported"); });
}

}  // namespace

extern "C" {

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t*, unsigned) {
    return unsupported("cuFileBatchIOSetUp");
}
CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t, unsigned, CUfileIOParams_t*, unsigned) {
    return unsupported("cuFileBatchIOSubmit");
}
CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t, unsigned, unsigned*, CUfileIOEvents_t*,
                                     struct timespec*) {
    return unsupported("cuFileBatchIOGetStatus");
}
CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t) {
    return unsupported("cuFileBatchIOCancel");
}
void cuFileBatchIODestroy(CUfileBatchHandle_t) {}
}
