/* A program in C, linked against the library, by plain names and by those with a p. */
#include <stdio.h>
#include <stdlib.h>

#include "shims/nccl/abi.h"

#define CHECK(call)                                                               \
    do {                                                                          \
        if ((call) != ncclSuccess) {                                              \
            printf("line %d: %s: %s\n", __LINE__, #call, ncclGetLastError(NULL)); \
            return 1;                                                             \
        }                                                                         \
    } while (0)

int main(void) {
    enum { ranks = 2, count = 1000 };
    ncclComm_t comms[ranks];
    float* data[ranks];
    int version = 0;
    CHECK(pncclGetVersion(&version));
    if (version != 22809) return 1;
    ncclResetDebugInit();
    CHECK(ncclCommInitAll(comms, ranks, NULL));
    for (int r = 0; r < ranks; ++r) {
        CHECK(sidestepNcclSetDevice(r));
        CHECK(ncclMemAlloc((void**)&data[r], count * sizeof(float)));
        for (int i = 0; i < count; ++i) data[r][i] = (float)(r + i);
    }
    CHECK(ncclGroupStart());
    for (int r = 0; r < ranks; ++r)
        CHECK(pncclAllReduce(data[r], data[r], count, ncclFloat32, ncclSum, comms[r], NULL));
    CHECK(ncclGroupEnd());
    for (int r = 0; r < ranks; ++r) {
        for (int i = 0; i < count; ++i)
            if (data[r][i] != (float)(1 + 2 * i))
                return printf("rank %d, element %d: %g\n", r, i, (double)data[r][i]), 1;
        CHECK(ncclCommDestroy(comms[r]));
        CHECK(ncclMemFree(data[r]));
    }
    puts("ok");
    return 0;
}
