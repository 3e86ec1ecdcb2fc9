// The exported functions about files.
#include "shims/cufile/calls.hpp"
#include "shims/cufile/driver.hpp"
#include "shims/cufile/files.hpp"

using namespace sidestep::cufile;

extern "C" {

CUfileError_t cuFileHandleRegister(CUfileHandle_t* fh, CUfileDescr_t* descr) {
    const CUfileError_t done = answer("cuFileHandleRegister", [&]() -> Refusal {
        if (fh == nullptr || descr == nullptr)
            return refusal(CU_FILE_INVALID_VALUE, "the handle or the description is null");
        if (auto refused = Driver::get().ensure_open()) return refused;
        return Files::get().add(*descr, *fh);
    });
    note(Event::file_added, done.err == CU_FILE_SUCCESS);
    return done;
}

void cuFileHandleDeregister(CUfileHandle_t fh) {
    const CUfileError_t done = answer("cuFileHandleDeregister", [&]() -> Refusal {
        if (!Files::get().remove(fh))
            return refusal(CU_FILE_HANDLE_NOT_REGISTERED, "this is no handle, or was given back");
        return {};
    });
    note(Event::file_removed, done.err == CU_FILE_SUCCESS);
}
}
