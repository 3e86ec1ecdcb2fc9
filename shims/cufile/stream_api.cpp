// The exported functions about reads and writes in the order of a stream. Not there yet: refused.
#include "shims/cufile/failure.hpp"

using namespace sidestep::cufile;

namespace {

CUfileError_t unsupported(const char* call) {
    return answer(call, [] { return refusal(CU_FILE_ASYNC_NOT_SUPPORTED, "streams are not supported"); });
}

}  // namespace

extern "C" {

CUfileError_t cuFileReadAsync(CUfileHandle_t, void*, size_t*, off_t*, off_t*, ssize_t*, CUstream) {
    return unsupported("cuFileReadAsync");
}
CUfileError_t cuFileWriteAsync(CUfileHandle_t, void*, size_t*, off_t*, off_t*, ssize_t*, CUstream) {
    return unsupported("cuFileWriteAsync");
}
CUfileError_t cuFileStreamRegister(CUstream, unsigned) {
    return unsupported("cuFileStreamRegister");
}
CUfileError_t cuFileStreamDeregister(CUstream) {
    return unsupported("cuFileStreamDeregister");
}
}
