// Every function of NCCL's has two names: pncclX, which is defined, and ncclX, a weak one that a profiler may
// replace.
#pragma once

#include "shims/nccl/abi.h"

#define SIDESTEP_NCCL_ALSO(name) \
    extern "C" __attribute__((weak, alias("pnccl" #name))) __typeof__(nccl##name) nccl##name
