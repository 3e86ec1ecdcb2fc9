// The exported reads and writes that return when the bytes are there.
#include <fmt/format.h>

#include "shims/cufile/moving.hpp"

using namespace sidestep;
using namespace sidestep::cufile;

namespace {

// The parts of memory one after the other, as one stretch of the file. Ends at the end of the file, or at the first failure: what
// came before it is answered then, unless it is nothing.
Moved run_parts(CUfileHandle_t fh, const CUfileIOVec_t* parts, size_t count, off_t offset, unsigned flags,
                CallKind kind) {
    constexpr size_t most_parts = 1024;  // as of readv(2)
    Moved all;
    if (flags != 0)
        all.refused.code = CU_FILE_INVALID_VALUE, all.refused.words = "flags are 0 in every version";
    if ((parts == nullptr && count != 0) || count > most_parts)
        all.refused.code = CU_FILE_INVALID_VALUE,
        all.refused.words = "the list of parts is null, or longer than 1024";
    if (count == 0 && !all.refused) {
        Prepared prepared;
        char nothing = 0;
        all.refused = prepare({fh, &nothing, 0, offset, 0, kind}, prepared);
    }
    for (size_t i = 0; i < count && !all.refused; ++i) {
        if (parts[i].len == 0) continue;
        Moved part = run({fh, parts[i].base, parts[i].len, offset + static_cast<off_t>(all.bytes), 0, kind});
        if (part.refused && all.bytes == 0) all.refused = std::move(part.refused);
        all.bytes += part.bytes;
        if (part.bytes < parts[i].len) break;
    }
    return all;
}

}  // namespace

extern "C" {

ssize_t cuFileRead(CUfileHandle_t fh, void* base, size_t size, off_t file_offset, off_t base_offset) {
    const int before = errno;
    return answer_of("cuFileRead", run({fh, base, size, file_offset, base_offset, CallKind::read}), before);
}

ssize_t cuFileWrite(CUfileHandle_t fh, const void* base, size_t size, off_t file_offset, off_t base_offset) {
    const int before = errno;
    return answer_of("cuFileWrite", run({fh, base, size, file_offset, base_offset, CallKind::write}), before);
}

ssize_t cuFileReadv(CUfileHandle_t fh, const CUfileIOVec_t* parts, size_t count, off_t file_offset,
                    unsigned flags) {
    const int before = errno;
    return answer_of("cuFileReadv", run_parts(fh, parts, count, file_offset, flags, CallKind::readv), before);
}

ssize_t cuFileWritev(CUfileHandle_t fh, const CUfileIOVec_t* parts, size_t count, off_t file_offset,
                     unsigned flags) {
    const int before = errno;
    return answer_of("cuFileWritev", run_parts(fh, parts, count, file_offset, flags, CallKind::writev),
                     before);
}
}
