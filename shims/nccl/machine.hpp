// The machine as this process sees it: one Context for all communicators, and which GPU a thread means.
#pragma once

#include <sidestep/context.hpp>
#include <sidestep/place.hpp>
#include <sidestep/result.hpp>

namespace sidestep::nccl {

// Opened at the first call and never closed: programs free communicators from destructors that run at exit,
// when a Context that closes itself might be gone already.
Result<const Context*> context();

// True from the moment on that the process ends by exit(). The driver may have shut down: what is freed now
// is left to the end of the process.
bool ending();

// True where the GPUs are not in this machine (SIDESTEP_MACHINE). They have no streams.
bool emulated(const Context& context);

struct Gpu {
    int number = 0;  // CUDA's, which CUDA_VISIBLE_DEVICES may have renumbered; of an emulated GPU its own
    Place place;
    bool emulated = false;
};

// The GPU of CUDA's number `number`.
Result<Gpu> device(const Context& context, int number);

// The GPU that this thread has made current (cudaSetDevice); CUDA's first where it made none. On emulated
// GPUs: that of sidestepNcclSetDevice(), else the one that the launcher of several processes gave this one,
// else `otherwise`; -1 there means that of the last communicator which this thread joined, or the first.
Result<Gpu> current_device(const Context& context, int otherwise);

// See sidestepNcclSetDevice(); `chosen` false: this is but the GPU of a communicator that the thread joined.
Result<void> set_emulated_device(const Context& context, int number, bool chosen);

}  // namespace sidestep::nccl
