// The exported functions about reads and writes in the order of a stream.
#include "shims/cufile/driver.hpp"
#include "shims/cufile/stream.hpp"

using namespace sidestep::cufile;

extern "C" {

CUfileError_t cuFileReadAsync(CUfileHandle_t fh, void* base, size_t* size, off_t* file_offset,
                              off_t* base_offset, ssize_t* bytes_read, CUstream stream) {
    return answer("cuFileReadAsync", [&] {
        return enqueue({fh, base, size, file_offset, base_offset, bytes_read, CallKind::stream_read}, stream);
    });
}

CUfileError_t cuFileWriteAsync(CUfileHandle_t fh, void* base, size_t* size, off_t* file_offset,
                               off_t* base_offset, ssize_t* bytes_written, CUstream stream) {
    return answer("cuFileWriteAsync", [&] {
        return enqueue({fh, base, size, file_offset, base_offset, bytes_written, CallKind::stream_write},
                       stream);
    });
}

CUfileError_t cuFileStreamRegister(CUstream stream, unsigned flags) {
    return answer("cuFileStreamRegister", [&]() -> Refusal {
        if (auto refused = Driver::get().ensure_open()) return refused;
        return Streams::get().add(stream, flags);
    });
}

CUfileError_t cuFileStreamDeregister(CUstream stream) {
    return answer("cuFileStreamDeregister", [&]() -> Refusal {
        if (!Driver::get().is_open())
            return refusal(CU_FILE_DRIVER_NOT_INITIALIZED, "the driver is not open");
        return Streams::get().remove(stream);
    });
}
}
