// The few functions of the CUDA driver that the public API has no word for: which device is current, and
// order between streams. Their names and types are those of cuda.h; a CUdevice and a CUresult are ints.
#pragma once

struct CUctx_st;
struct CUevent_st;
struct CUstream_st;

namespace sidestep::nccl {

struct Driver {
    int (*init)(unsigned flags) = nullptr;
    int (*current)(CUctx_st** context) = nullptr;
    int (*device_of_current)(int* device) = nullptr;
    int (*device)(int* device, int number) = nullptr;
    int (*bus_id)(char* text, int length, int device) = nullptr;
    int (*retain_primary)(CUctx_st** context, int device) = nullptr;
    int (*release_primary)(int device) = nullptr;
    int (*push)(CUctx_st* context) = nullptr;
    int (*pop)(CUctx_st** context) = nullptr;
    int (*create_event)(CUevent_st** event, unsigned flags) = nullptr;
    int (*destroy_event)(CUevent_st* event) = nullptr;
    int (*record)(CUevent_st* event, CUstream_st* stream) = nullptr;
    int (*wait)(CUstream_st* stream, CUevent_st* event, unsigned flags) = nullptr;

    // False where there is no driver, or one without any of them.
    bool usable = false;

    // Loaded once, at the first request.
    static const Driver& get();
};

}  // namespace sidestep::nccl
