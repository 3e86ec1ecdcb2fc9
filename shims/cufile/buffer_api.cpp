// The exported functions about memory.
#include "shims/cufile/buffers.hpp"
#include "shims/cufile/calls.hpp"
#include "shims/cufile/driver.hpp"

using namespace sidestep::cufile;

extern "C" {

CUfileError_t cuFileBufRegister(const void* base, size_t length, int flags) {
    const CUfileError_t done = answer("cuFileBufRegister", [&]() -> Refusal {
        if (auto refused = Driver::get().ensure_open()) return refused;
        return Buffers::get().add(*Driver::get().context(), base, length, flags);
    });
    note(Event::memory_added, done.err == CU_FILE_SUCCESS);
    return done;
}

CUfileError_t cuFileBufDeregister(const void* base) {
    const CUfileError_t done = answer("cuFileBufDeregister", [&]() -> Refusal {
        if (Driver::get().was_closed())
            return refusal(CU_FILE_DRIVER_CLOSING, "the driver was closed, which gave all memory back");
        return Buffers::get().remove(base);
    });
    note(Event::memory_removed, done.err == CU_FILE_SUCCESS);
    return done;
}
}
