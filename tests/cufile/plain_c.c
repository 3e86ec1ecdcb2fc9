/* A program in C, linked against the library: every function once, and what each answers. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shims/cufile/abi.h"

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            printf("line %d: %s: %s\n", __LINE__, #condition, sidestepCufileLastError()); \
            return 1;                                                                     \
        }                                                                                 \
    } while (0)
#define OK(call) CHECK((call).err == CU_FILE_SUCCESS)

enum { bytes = 1 << 20 };

static int settings(void) {
    size_t number = 0, least = 0, most = 0, sizes[3], counts[3];
    bool flag = true;
    char text[64];
    int flags = 0, version = 0;
    OK(cuFileGetVersion(&version));
    CHECK(version == 1180);
    OK(cuFileGetParameterMinMaxValue(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &least, &most));
    CHECK(least == 1 && most == 256);
    OK(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 128));
    OK(cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &number));
    CHECK(number == 128);
    OK(cuFileSetParameterBool(CUFILE_PARAM_PREFER_IO_URING, false));
    OK(cuFileGetParameterBool(CUFILE_PARAM_PREFER_IO_URING, &flag));
    CHECK(!flag);
    OK(cuFileSetParameterString(CUFILE_PARAM_LOGGING_LEVEL, "INFO"));
    OK(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, text, sizeof text));
    CHECK(strcmp(text, "INFO") == 0);
    OK(cuFileGetParameterPosixPoolSlabArray(sizes, counts, 3));
    OK(cuFileSetParameterPosixPoolSlabArray(sizes, counts, 3));
    OK(cuFileDriverSetP2PFlags(CU_FILE_NVME_SUPPORTED, CUFILE_NVFS));
    OK(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, &flags));
    CHECK(flags == CUFILE_NVFS);
    return 0;
}

static int driver(const char* path) {
    CUfileDrvProps_t props;
    size_t kb = 0;
    OK(cuFileDriverOpen());
    OK(cuFileDriverOpen());
    OK(cuFileDriverClose());
    CHECK(cuFileUseCount() == 1);
    OK(cuFileDriverGetProperties(&props));
    OK(cuFileDriverSetPollMode(false, 4));
    OK(cuFileDriverSetMaxDirectIOSize(props.nvfs.max_direct_io_size));
    OK(cuFileDriverSetMaxCacheSize(props.max_device_cache_size));
    OK(cuFileDriverSetMaxPinnedMemSize(props.max_device_pinned_mem_size));
    OK(cuFileGetBARSizeInKB(0, &kb));
    OK(cuFileExportPCIeTopology(path));
    return 0;
}

static int moving(const char* path) {
    CUfileDescr_t description;
    CUfileHandle_t handle = NULL;
    CUfileIOVec_t parts[2];
    unsigned char* memory = sidestepCufileAllocate(0, bytes);
    const int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    memset(&description, 0, sizeof description);
    description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    description.handle.fd = file;
    CHECK(memory != NULL && file >= 0);
    OK(cuFileHandleRegister(&handle, &description));
    OK(cuFileBufRegister(memory, bytes, 0));
    for (int i = 0; i < bytes; ++i) memory[i] = (unsigned char)(i * 7);
    CHECK(cuFileWrite(handle, memory, bytes, 0, 0) == bytes);
    memset(memory, 0, bytes);
    CHECK(cuFileRead(handle, memory, bytes, 0, 0) == bytes);
    for (int i = 0; i < bytes; ++i) CHECK(memory[i] == (unsigned char)(i * 7));
    parts[0].base = memory;
    parts[0].len = 1000;
    parts[1].base = memory + 5000;
    parts[1].len = 3000;
    CHECK(cuFileWritev(handle, parts, 2, bytes, 0) == 4000);
    CHECK(cuFileReadv(handle, parts, 2, bytes, 0) == 4000);
    CHECK(cuFileRead(handle, memory, bytes, bytes, 0) == 4000);
    OK(cuFileBufDeregister(memory));
    cuFileHandleDeregister(handle);
    sidestepCufileFree(memory);
    close(file);
    unlink(path);
    return 0;
}

/* Present, and never a crash, whatever is passed. */
static int batches_and_streams(void) {
    CUfileBatchHandle_t batch = NULL;
    CUfileIOEvents_t event;
    unsigned count = 1;
    int level = 0;
    CUfileStatsLevel1_t level1;
    CUfileStatsLevel2_t level2;
    CUfileStatsLevel3_t level3;
    CHECK(cuFileBatchIOSetUp(NULL, 1).err != CU_FILE_SUCCESS);
    CHECK(cuFileBatchIOSubmit(batch, 0, NULL, 0).err != CU_FILE_SUCCESS);
    CHECK(cuFileBatchIOGetStatus(batch, 0, &count, &event, NULL).err != CU_FILE_SUCCESS);
    cuFileBatchIOCancel(batch);
    cuFileBatchIODestroy(batch);
    CHECK(cuFileReadAsync(NULL, NULL, NULL, NULL, NULL, NULL, NULL).err != CU_FILE_SUCCESS);
    CHECK(cuFileWriteAsync(NULL, NULL, NULL, NULL, NULL, NULL, NULL).err != CU_FILE_SUCCESS);
    CHECK(cuFileStreamRegister(NULL, 99).err != CU_FILE_SUCCESS);
    cuFileStreamDeregister(NULL);
    CHECK(cuFileSetStatsLevel(99).err != CU_FILE_SUCCESS);
    cuFileGetStatsLevel(&level);
    cuFileStatsStart();
    cuFileGetStatsL1(&level1);
    cuFileGetStatsL2(&level2);
    cuFileGetStatsL3(&level3);
    cuFileStatsReset();
    cuFileStatsStop();
    return 0;
}

int main(int argc, char** argv) {
    if (argc != 2) return printf("give the name of a file to write\n"), 2;
    if (settings() || driver(argv[1]) || moving(argv[1]) || batches_and_streams()) return 1;
    OK(cuFileDriverClose_v2());
    CHECK(cuFileUseCount() == 0);
    puts("ok");
    return 0;
}
