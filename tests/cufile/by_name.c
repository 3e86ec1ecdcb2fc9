/* A program that opens libcufile.so.0 by its name and looks up what it needs, as KvikIO and fastsafetensors do. It reads a
 * file into host memory and prints the version, the bytes read, and their sum. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "shims/cufile/abi.h"

static void* library;
/* As POSIX says it is done, since C has no conversion to a pointer to a function. */
#define LOOK_UP(name)           \
    __typeof__(name)* p_##name; \
    *(void**)(&p_##name) = dlsym(library, #name)

int main(int argc, char** argv) {
    static unsigned char memory[1 << 20];
    CUfileDescr_t description;
    CUfileHandle_t handle = NULL;
    int version = 0;
    unsigned long sum = 0;
    library = dlopen("libcufile.so.0", RTLD_LAZY | RTLD_LOCAL);
    if (argc != 2 || library == NULL) return printf("%s\n", dlerror()), 1;
    LOOK_UP(cuFileDriverOpen);
    LOOK_UP(cuFileDriverClose_v2);
    LOOK_UP(cuFileGetVersion);
    LOOK_UP(cuFileHandleRegister);
    LOOK_UP(cuFileHandleDeregister);
    LOOK_UP(cuFileRead);
    if (p_cuFileDriverOpen().err != 0) return puts("cuFileDriverOpen"), 1;
    p_cuFileGetVersion(&version);
    memset(&description, 0, sizeof description);
    description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    description.handle.fd = open(argv[1], O_RDONLY);
    if (p_cuFileHandleRegister(&handle, &description).err != 0) return puts("cuFileHandleRegister"), 1;
    const ssize_t bytes = p_cuFileRead(handle, memory, sizeof memory, 0, 0);
    for (ssize_t i = 0; i < bytes; ++i) sum += memory[i];
    printf("%d %zd %lu\n", version, bytes, sum);
    p_cuFileHandleDeregister(handle);
    return p_cuFileDriverClose_v2().err;
}
