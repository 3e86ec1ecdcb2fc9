// The tests, on an emulated machine and without settings of this one.
#include <stdlib.h>

#include <gtest/gtest.h>

int main(int count, char** arguments) {
    ::testing::InitGoogleTest(&count, arguments);
    ::setenv("SIDESTEP_MACHINE", "dgx-h100", 1);
    ::setenv("CUFILE_ENV_PATH_JSON", SIDESTEP_SOURCE_DIR "/tests/cufile/empty.json", 1);
    ::unsetenv("SIDESTEP_CUFILE_VERSION");
    return RUN_ALL_TESTS();
}
